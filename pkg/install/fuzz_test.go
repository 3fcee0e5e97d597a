package install

import (
	"bytes"
	"testing"
)

// fuzzWants are what the fuzzers ask for, in turn.
var fuzzWants = []Want{
	byRuntime, byShim, withLogs,
	{Runtime: `/a "b"\c`, Shim: true, ShimPath: `/d 'e'`, Major: 2, LogLimits: true},
}

// fuzz adds agentbox to any file: what was there is kept, adding again adds
// nothing, and removing gives the same bytes.
//
// The seeds are short: the fuzzer makes each interesting input as small as it can,
// which takes minutes for the long files that TestAdd has.
func fuzz(f *testing.F, e Engine, seeds ...string) {
	for i, seed := range seeds {
		f.Add([]byte(seed), byte(i))
	}
	f.Fuzz(func(t *testing.T, data []byte, which byte) {
		data = bytes.Clone(data)
		want := fuzzWants[int(which)%len(fuzzWants)]
		if _, err := Add(e, "FILE", data, want); err != nil {
			return // TestRefused is about these
		}
		roundTrip(t, e, data, want)
	})
}

func FuzzDocker(f *testing.F) {
	fuzz(f, Docker, "", "{ }", `{"log-opts":{"a":"b"},"runtimes":{ }}`, "{\r\n\t\"a\\u0022\": [1, {\"}\": 2}]\r\n}", "{\n  \"runtimes\": {\n    \"x\": {}\n  }\n}\n")
}

// tomlSeeds are the forms that a table can have.
var tomlSeeds = []string{
	"", "# a", "a = 1", "\xef\xbb\xbf[a]\n\tb.c = nan # d\n\n", "a = \"\"\"\n[b]\n\"\"\"\n", "[[a]]\r\n[a.b]\r\nc = [\r\n1\r\n]",
}

func FuzzContainerd(f *testing.F) {
	fuzz(f, Containerd, append([]string{
		"version = 2\n[plugins]\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n",
		"[plugins]\ncri.containerd.runtimes.runc.runtime_type = 'x'\n", "disabled_plugins = ['cri']",
	}, tomlSeeds...)...)
}

func FuzzCRIO(f *testing.F)   { fuzz(f, CRIO, append(tomlSeeds, "crio.runtime.runtimes.x = {}\n")...) }
func FuzzPodman(f *testing.F) { fuzz(f, Podman, append(tomlSeeds, "engine.runtimes.x = []\n")...) }

// FuzzRecord: whatever a damaged record says, what is left of a file parses, or is
// the file as it was.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"engine":"docker","file":"/x","before":null,"after":"","added":[{"path":["runtimes"]},{"path":["runtimes","agentbox"],"value":{"path":"x"}}]}`),
		[]byte(`{"runtimes":{"agentbox":{"path":"x"}}}`))
	f.Add([]byte(`{"version":1,"engine":"podman","file":"/x","before":"","after":"","added":[{"path":["engine","runtimes","agentbox"],"value":["x"]}]}`),
		[]byte("[engine.runtimes]\nagentbox=['y']\n"))
	f.Fuzz(func(t *testing.T, record, data []byte) {
		r, err := parseRecord(record)
		if err != nil {
			return
		}
		rest, err := r.undo(data)
		if err != nil || r.Before != nil && string(rest) == *r.Before || rest == nil || bytes.Equal(rest, data) {
			return
		}
		decode(t, r.Engine, rest)
	})
}
