//go:build e2e

package e2e

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/result"
)

// Programs of this machine that workloads need. They are mounted into the
// container, so they have to be below /usr.
const (
	python feature = "python3"
	node   feature = "node"
	jvm    feature = "java"
	build  feature = "make" // and a C compiler
	traces feature = "traces"
)

func init() {
	for f, programs := range map[feature][]string{
		python: {"python3"}, node: {"node"}, jvm: {"java", "keytool"}, build: {"make", "gcc", "ld"},
	} {
		features[f] = func() error {
			for _, name := range programs {
				if _, err := os.Stat("/usr/bin/" + name); err != nil {
					return err
				}
			}
			return nil
		}
	}
	features[traces] = func() error {
		_, err := os.Stat(tracesDir())
		return err
	}
}

// The programs are written so that they print one line, the last one, which shows
// that all of it ran.
var workloads = []struct {
	name   string
	needs  []feature
	script string
	says   string
}{
	{"shell", nil, `
mkdir tree && cd tree
for i in $(seq 1 200); do echo "line $i of a file" >"file$i"; done
tar -c . | gzip | gunzip | tar -t | grep -c file >../count
grep -l 'line 1[0-9] ' * | sort | xargs cat | md5sum >../sum
(sleep 0.1; echo late >../late) & wait
cat ../late ../count | tr '\n' ' '`, "late 200"},

	{"Python", []feature{python}, `cat >work.py <<'END'
import concurrent.futures, hashlib, json, subprocess, sys, threading

def work(n):
    text = json.dumps([{"id": i, "name": "x" * (i % 50)} for i in range(20000)])
    return hashlib.sha256(text.encode()).hexdigest(), len(json.loads(text))

if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    threads = [threading.Thread(target=lambda: None) for _ in range(200)]
    for t in threads: t.start()
    for t in threads: t.join()
    data = bytearray(100 << 20)[::4096]
    out = subprocess.run([sys.executable, "-c", "print(sum(range(1000)))"], capture_output=True, text=True)
    print(len(set(results)), results[0][1], len(data) >> 10, out.stdout.strip())
END
python3 work.py`, "1 20000 25 499500"},

	{"Node", []feature{node}, `cat >work.js <<'END'
const { Worker, isMainThread, parentPort } = require('worker_threads');
const fs = require('fs');
if (isMainThread) {
  const done = [0, 1, 2, 3].map(() => new Promise((ok, bad) =>
    new Worker(__filename).on('message', ok).on('error', bad)));
  Promise.all(done).then((sums) => {
    for (let i = 0; i < 200; i++) fs.writeFileSync('f' + i, JSON.stringify({ i, text: 'y'.repeat(1000) }));
    const size = fs.readdirSync('.').filter((n) => /^f\d+$/.test(n)).length;
    const out = require('child_process').execFileSync(process.execPath, ['-p', '6*7']).toString().trim();
    console.log(new Set(sums).size, size, out);
  });
} else {
  const objects = [];
  for (let i = 0; i < 200000; i++) objects.push({ i, s: String(i) });
  parentPort.postMessage(objects.reduce((sum, o) => sum + o.s.length, 0));
}
END
node work.js`, "1 200 42"},

	{"JVM", []feature{jvm}, `
keytool -J-Xms64m -J-XX:+AlwaysPreTouch -genkeypair -alias box -keyalg EC -groupname secp256r1 -dname CN=box -storepass secret -keystore store >/dev/null 2>&1
keytool -list -storepass secret -keystore store 2>/dev/null | grep -c 'box,'`, "1"},

	{"build", []feature{build}, `
for i in $(seq 1 16); do
	printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%d(void) { return %d; }\n' $i $i >f$i.c
	calls="$calls + f$i()" prototypes="$prototypes int f$i(void);"
done
printf '#include <stdio.h>\n%s\nint main(void) { printf("%%d\\n", 0 %s); }\n' "$prototypes" "$calls" >main.c
printf 'all: main\nmain: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -O2 -c $<\n' >Makefile
make -j8 >log 2>&1 && ./main || cat log`, "136"},
}

// What agents usually do runs to its end under the defaults and meets no limit
// but that of CPU time.
func TestDockerWorkloadsRunUnharmed(t *testing.T) {
	newDocker(t)
	for _, w := range workloads {
		t.Run(w.name, func(t *testing.T) {
			d := newDocker(t, w.needs...)
			c := d.of("host").held("agentbox", "--workdir /work"+hostMounts(t), w.script)
			if have := c.Cgroup.limits(); have != defaultLimits() {
				t.Errorf("the cgroup has %+v, want the defaults", have)
			}
			c.letGo()
			out := c.main.wait(3 * time.Minute)
			lines := strings.Split(strings.TrimSpace(out.Stdout), "\n")
			if last := strings.TrimSpace(lines[len(lines)-1]); out.Code != 0 || last != w.says {
				t.Errorf("the workload did not come to its end: %v", out)
			}
			r := c.verdict()
			wantUnharmed(t, r)
			if u := r.Usage; u != nil && u.MemoryPeakBytes != nil && u.CPUUsec != nil {
				t.Logf("%d MiB at most, %.1f s of CPU time", *u.MemoryPeakBytes/mib, float64(*u.CPUUsec)/1e6)
			}
		})
	}
}

// hostMounts are the flags that show a container the programs of this machine.
func hostMounts(t *testing.T) string {
	t.Helper()
	settings, err := filepath.Glob("/etc/java-*")
	if err != nil {
		t.Fatal(err)
	}
	var flags strings.Builder
	for _, dir := range append(settings, "/usr", "/etc/alternatives") {
		if exists(dir) {
			fmt.Fprintf(&flags, " --volume %s:%s:ro", dir, dir)
		}
	}
	return flags.String()
}

// wantUnharmed checks the result of a container that met neither its limit of
// memory nor that of processes.
func wantUnharmed(t *testing.T, r *result.Result) {
	t.Helper()
	wantEnded(t, r)
	if m := r.Evidence.Memory; m == nil || m.OOM != 0 || r.Events.OOMKill != 0 || r.Events.PidsMax != 0 || r.Evidence.PidsMax == nil {
		t.Errorf("a limit struck, or nobody could tell: %s", describe(r))
	}
}

// tracesDir has recordings of agents, one file each: seconds, memory in MB, CPU
// in percent. They are no part of this project.
func tracesDir() string { return os.Getenv("AGENTBOX_TRACES") }

// A recording is replayed at 60 times its speed and scaled to a peak of 96 MiB:
// unharmed where the limit is above, killed and told so where it is below.
func TestDockerRecordedAgents(t *testing.T) {
	newDocker(t, traces)
	// The highest peaks and the sharpest bursts.
	for _, name := range []string{"haiku-pre-commit__pre-commit-2524", "local-dask__dask-5510", "batch-ML_Scientific_Easy"} {
		t.Run(name, func(t *testing.T) {
			script := replay(t, filepath.Join(tracesDir(), name+".csv"), 96)
			d := newDocker(t)
			c := d.held("agentbox", "-m 160m --tmpfs /mem", script)
			c.letGo()
			if out := c.ends(); out.Code != 0 || !strings.HasSuffix(out.Stdout, "replayed\n") {
				t.Errorf("the replay below its limit: %v", out)
			}
			wantUnharmed(t, c.verdict())

			c = d.held("agentbox", "-m 64m --tmpfs /mem", script)
			c.letGo()
			out := c.ends()
			r := c.verdict()
			wantOOMEvidence(t, r)
			if has(cgroup2) {
				wantOOMVerdict(t, r)
				if strings.Contains(out.Stdout, "replayed") {
					t.Errorf("the replay above its limit came to its end: %v", out)
				}
			}
		})
	}
}

// replay returns a shell script that holds as much memory as a recording did, in
// a file of a tmpfs. peak is in MiB.
func replay(t *testing.T, file string, peak float64) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return n
	}
	highest := 0.0
	for _, row := range rows[1:] {
		highest = max(highest, number(row[1]))
	}
	script := "now=0; to() { [ $1 -lt $now ] && truncate -s ${1}M /mem/file; [ $1 -gt $now ] && dd if=/dev/zero bs=1M count=$(($1 - now)) 2>/dev/null >>/mem/file; now=$1; }\n"
	const step = 10.0 // of the recording's seconds; its highest moment in each
	until, most := step, 0.0
	for _, row := range rows[1:] {
		most = max(most, number(row[1]))
		if number(row[0]) >= until {
			script += fmt.Sprintf("to %.0f; sleep %.2f\n", most/highest*peak, step/60)
			until, most = until+step, 0
		}
	}
	return script + "echo replayed"
}
