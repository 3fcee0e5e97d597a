package config

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agentbox/agentbox/pkg/limits"
)

func TestParseValue(t *testing.T) {
	const (
		kib = int64(1) << 10
		mib = kib << 10
		gib = mib << 10
		tib = gib << 10
	)
	tests := []struct {
		name string
		kind limits.Kind
		in   string
		want limits.Value
	}{
		{"size binary", limits.Bytes, "512MiB", limits.Limit(512 * mib)},
		{"size short, as Docker", limits.Bytes, "2g", limits.Limit(2 * gib)},
		{"size M is 2^20, as Docker", limits.Bytes, "3M", limits.Limit(3 * mib)},
		{"size MB is 2^20, as Docker", limits.Bytes, "3MB", limits.Limit(3 * mib)},
		{"size Mi, as Kubernetes", limits.Bytes, "512Mi", limits.Limit(512 * mib)},
		{"size Ki", limits.Bytes, "4Ki", limits.Limit(4 * kib)},
		{"size case", limits.Bytes, "1gIb", limits.Limit(gib)},
		{"size with a space", limits.Bytes, "512 MiB", limits.Limit(512 * mib)},
		{"size fraction", limits.Bytes, "1.5GiB", limits.Limit(3 * gib / 2)},
		{"size without a whole part", limits.Bytes, ".5k", limits.Limit(512)},
		{"size fraction is cut to bytes", limits.Bytes, "0.1GiB", limits.Limit(107374182)},
		{"size petabytes", limits.Bytes, "1PiB", limits.Limit(1024 * tib)},
		{"size plain", limits.Bytes, "1048577", limits.Limit(1048577)},
		{"size with b", limits.Bytes, "10b", limits.Limit(10)},
		{"size 2^53+1 plain", limits.Bytes, "9007199254740993", limits.Limit(9007199254740993)},
		{"size 2^53+1 with B", limits.Bytes, "9007199254740993B", limits.Limit(9007199254740993)},
		{"size largest", limits.Bytes, "9223372036854775807", limits.Limit(math.MaxInt64)},
		{"size largest in KiB", limits.Bytes, "9007199254740991KiB", limits.Limit(9007199254740991 * kib)},
		{"size zero", limits.Bytes, "0", limits.Limit(0)},
		{"size zero with a unit", limits.Bytes, "0.0GiB", limits.Limit(0)},
		{"size none", limits.Bytes, "none", limits.NoLimit()},

		{"count", limits.Count, "2048", limits.Limit(2048)},
		{"count largest", limits.Count, "9223372036854775807", limits.Limit(math.MaxInt64)},
		{"count none", limits.Count, "none", limits.NoLimit()},

		{"cpus whole", limits.CPUs, "2", limits.Limit(2_000_000)},
		{"cpus decimal", limits.CPUs, "1.5", limits.Limit(1_500_000)},
		{"cpus tenth, which binary cannot hold", limits.CPUs, "0.1", limits.Limit(100_000)},
		{"cpus 0.29, which times 10^6 is 289999.99 in binary", limits.CPUs, "0.29", limits.Limit(290_000)},
		{"cpus millionth", limits.CPUs, "0.000001", limits.Limit(1)},
		{"cpus trailing zeros", limits.CPUs, "1.50000000", limits.Limit(1_500_000)},
		{"cpus without a whole part", limits.CPUs, ".5", limits.Limit(500_000)},
		{"cpus milli", limits.CPUs, "500m", limits.Limit(500_000)},
		{"cpus milli above one", limits.CPUs, "1500m", limits.Limit(1_500_000)},
		{"cpus milli fraction", limits.CPUs, "0.5m", limits.Limit(500)},
		{"cpus most", limits.CPUs, "1000000", limits.Limit(MaxCPUs * 1_000_000)},
		{"cpus none", limits.CPUs, "none", limits.NoLimit()},

		{"duration", limits.Duration, "30s", limits.Limit(int64(30 * time.Second))},
		{"duration mixed", limits.Duration, "1h30m", limits.Limit(int64(90 * time.Minute))},
		{"duration fraction", limits.Duration, "1.5h", limits.Limit(int64(90 * time.Minute))},
		{"duration none", limits.Duration, "none", limits.NoLimit()},

		{"files both", limits.Files, "1024:4096", limits.Value{Soft: 1024, N: 4096}},
		{"files one", limits.Files, "1024", limits.Value{Soft: 1024, N: 1024}},
		{"files none", limits.Files, "none", limits.NoLimit()},

		{"dumps on", limits.Dumps, "true", limits.NoLimit()},
		{"dumps off", limits.Dumps, "false", limits.Limit(0)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseValue(tt.kind, tt.in)
			if err != nil || got != tt.want {
				t.Errorf("ParseValue(%v, %q) = %+v, %v; want %+v", tt.kind, tt.in, got, err, tt.want)
			}
		})
	}
}

func TestParseValueErrors(t *testing.T) {
	const (
		size     = `expected a size such as 512MiB, 1.5GiB or 2g, or "none" for no limit`
		count    = `expected a whole number such as 2048, or "none" for no limit`
		cpus     = `expected a number of CPUs such as 2, 0.5 or 500m, or "none" for no limit`
		duration = `expected a duration such as 30s, 15m or 1h30m, or "none" for no limit`
		files    = `expected soft:hard such as 1024:4096, or one number for both, or "none" for no limit`
		dumps    = `expected true or false`
	)
	tests := []struct {
		kind limits.Kind
		in   string
		want string
	}{
		{limits.Bytes, "", `"" is empty: ` + size},
		{limits.Bytes, " 1g", `" 1g" has a space at its start or end: ` + size},
		{limits.Bytes, "1g ", `"1g " has a space at its start or end: ` + size},
		{limits.Bytes, "1g\n", `"1g\n" has a space at its start or end: ` + size},
		{limits.Bytes, "-1", `"-1" is negative: ` + size},
		{limits.Bytes, "-1.5g", `"-1.5g" is negative: ` + size},
		{limits.Bytes, "None", `"None" is not written in lower case: ` + size},
		{limits.Bytes, "unlimited", `"unlimited" is not a size: ` + size},
		{limits.Bytes, "2gg", `"2gg" has the unknown unit "gg": ` + size},
		{limits.Bytes, "2gi b", `"2gi b" is not a size: ` + size},
		{limits.Bytes, "2 g b", `"2 g b" is not a size: ` + size},
		{limits.Bytes, "2  g", `"2  g" is not a size: ` + size},
		{limits.Bytes, "1E", `"1E" has the unknown unit "E": ` + size},
		{limits.Bytes, "10MiB/s", `"10MiB/s" is not a size: ` + size},
		{limits.Bytes, "1.2.3g", `"1.2.3g" is not a size: ` + size},
		{limits.Bytes, "5.g", `"5.g" is not a size: ` + size},
		{limits.Bytes, ".g", `".g" is not a size: ` + size},
		{limits.Bytes, "g", `"g" is not a size: ` + size},
		{limits.Bytes, "1,5g", `"1,5g" is not a size: ` + size},
		{limits.Bytes, "+5", `"+5" is not a size: ` + size},
		{limits.Bytes, "0x10", `"0x10" is not a size: ` + size},
		{limits.Bytes, "1e9", `"1e9" is not a size: ` + size},
		{limits.Bytes, "1e400", `"1e400" is not a size: ` + size},
		{limits.Bytes, "NaN", `"NaN" is not a size: ` + size},
		{limits.Bytes, "Inf", `"Inf" is not a size: ` + size},
		{limits.Bytes, "1_000", `"1_000" is not a size: ` + size},
		{limits.Bytes, "１２", `"１２" is not a size: ` + size},
		{limits.Bytes, "1\x00g", `"1\x00g" is not a size: ` + size},
		{limits.Bytes, "1.5", `"1.5" is a fraction without a unit: ` + size},
		{limits.Bytes, "1.5b", `"1.5b" is a fraction without a unit: ` + size},
		{limits.Bytes, "0.0001k", `"0.0001k" is less than one byte: ` + size},
		{limits.Bytes, "9223372036854775808", `"9223372036854775808" is more than 9223372036854775807: ` + size},
		{limits.Bytes, "99999999999999999999999b", `"99999999999999999999999b" is more than 9223372036854775807: ` + size},
		{limits.Bytes, "9007199254740992KiB", `"9007199254740992KiB" is more than 9223372036854775807: ` + size},
		{limits.Bytes, "8192PiB", `"8192PiB" is more than 9223372036854775807: ` + size},
		{limits.Bytes, "99999999999g", `"99999999999g" is more than 9223372036854775807: ` + size},
		{limits.Bytes, strings.Repeat("9", 400) + "g", `"` + strings.Repeat("9", 80) + `"... is more than 9223372036854775807: ` + size},

		{limits.Count, "2k", `"2k" is not a whole number: ` + count},
		{limits.Count, "1.0", `"1.0" is not a whole number: ` + count},
		{limits.Count, "-1", `"-1" is negative: ` + count},
		{limits.Count, "+1", `"+1" is not a whole number: ` + count},
		{limits.Count, "9223372036854775808", `"9223372036854775808" is more than 9223372036854775807: ` + count},

		{limits.CPUs, "two", `"two" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "-0.5", `"-0.5" is negative: ` + cpus},
		{limits.CPUs, "-.5", `"-.5" is negative: ` + cpus},
		{limits.CPUs, "nan", `"nan" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "inf", `"inf" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "-inf", `"-inf" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "1e3", `"1e3" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "1/2", `"1/2" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "1.", `"1." is not a number of CPUs: ` + cpus},
		{limits.CPUs, ".", `"." is not a number of CPUs: ` + cpus},
		{limits.CPUs, "m", `"m" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "5mm", `"5mm" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "1.5.1", `"1.5.1" is not a number of CPUs: ` + cpus},
		{limits.CPUs, "0.0000001", `"0.0000001" is finer than a millionth of a CPU: ` + cpus},
		{limits.CPUs, "0.0001m", `"0.0001m" is finer than a millionth of a CPU: ` + cpus},
		{limits.CPUs, "1000000.000001", `"1000000.000001" is more than 1000000 CPUs: ` + cpus},
		{limits.CPUs, "99999999999999999999", `"99999999999999999999" is more than 1000000 CPUs: ` + cpus},

		{limits.Duration, "30", `"30" has no unit: ` + duration},
		{limits.Duration, "1d", `"1d" is in days, which are not a unit here (1d is 24h): ` + duration},
		{limits.Duration, "-5s", `"-5s" is negative: ` + duration},
		{limits.Duration, "soon", `"soon" is not a duration: ` + duration},
		{limits.Duration, "9999999999h", `"9999999999h" is longer than 292 years: ` + duration},

		{limits.Files, "4096:1024", `"4096:1024" has a soft limit above the hard one: ` + files},
		{limits.Files, "1:2:3", `"1:2:3" is not a number of open files: ` + files},
		{limits.Files, "1024:", `"1024:" is not a number of open files: ` + files},
		{limits.Files, ":1024", `":1024" is not a number of open files: ` + files},
		{limits.Files, "1024:none", `"1024:none" is not a number of open files: ` + files},
		{limits.Files, "1:9223372036854775808", `"1:9223372036854775808" is more than 9223372036854775807: ` + files},

		{limits.Dumps, "none", `"none" is neither true nor false: ` + dumps},
		{limits.Dumps, "True", `"True" is neither true nor false: ` + dumps},
		{limits.Dumps, "0", `"0" is neither true nor false: ` + dumps},

		{limits.Kind(99), "1", `"1" is of an unknown kind: ` + count},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseValue(tt.kind, tt.in)
			var ve *ValueError
			if !errors.As(err, &ve) || ve.Value != tt.in || got != (limits.Value{}) {
				t.Fatalf("ParseValue(%v, %q) = %+v, %#v; want a *ValueError", tt.kind, tt.in, got, err)
			}
			if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
		})
	}
}

func TestParseKeyZero(t *testing.T) {
	for _, info := range limits.Keys {
		for _, in := range []string{"0", "0:5", "0s", "0.0", "0MiB"} {
			v, err := ParseValue(info.Kind, in)
			if err != nil {
				continue // not of this kind
			}
			got, err := ParseKey(info.Key, in)
			if info.Key == limits.KeySwap {
				if err != nil || got != v {
					t.Errorf("ParseKey(swap, %q) = %+v, %v; want %+v", in, got, err, v)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), " is zero: expected ") {
				t.Errorf("ParseKey(%s, %q) = %+v, %v; want a refusal", info.Key, in, got, err)
			}
		}
	}
}

func TestParseKeyText(t *testing.T) {
	tests := []struct {
		key      limits.Key
		in, want string
	}{
		{limits.KeySwap, "-1", `"-1" is negative: expected a size such as 1GiB, 0 for no swap, or "none" for no limit`},
		{limits.KeyOpenFiles, "0", `"0" is zero: expected soft:hard such as 1024:4096, or one number for both, or "none" for no limit`},
		{"memroy", "1", `"1" is for the unknown setting "memroy": expected one of the keys of [limits]`},
	}
	for _, tt := range tests {
		if _, err := ParseKey(tt.key, tt.in); err == nil || err.Error() != tt.want {
			t.Errorf("ParseKey(%s, %q): got %v, want %s", tt.key, tt.in, err, tt.want)
		}
	}
}

// checkText fails if a text could disturb a log: not one line, not printable,
// not bounded.
func checkText(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if !utf8.ValidString(text) || !isPrintable(text) || len(text) > 2000 {
		t.Errorf("error is not one bounded printable line: %q", text)
	}
}

// checkSame fails unless a value is sane and its text means the same value.
func checkSame(t *testing.T, info limits.KeyInfo, v limits.Value) {
	t.Helper()
	if v.N < 0 || v.Soft < 0 || v.Soft > v.N || v.None && v != limits.NoLimit() {
		t.Errorf("%s: %+v is not a sane value", info.Key, v)
	}
	text := info.String(v)
	if again, err := ParseValue(info.Kind, text); err != nil || again != v {
		t.Errorf("%s: %+v is written %q, which is read as %+v, %v", info.Key, v, text, again, err)
	}
}

func FuzzParseValue(f *testing.F) {
	for _, s := range []string{
		"512MiB", "1.5GiB", "2 g", "512Mi", "9223372036854775807", "9007199254740993b", "8191.99999999999999999PiB", "none",
		"2048", "0.29", "1500m", "0.000001", "1000000", "30s", "1h30m0.5s", "1d", "1024:4096", "true", "-1", "NaN", "1e400", "１", "\xff", "",
	} {
		for _, info := range limits.Keys {
			f.Add(string(info.Key), s)
		}
	}
	f.Fuzz(func(t *testing.T, key, s string) {
		info, ok := limits.Key(key).Info()
		v, err := ParseKey(limits.Key(key), s)
		if err != nil {
			var ve *ValueError
			if !errors.As(err, &ve) || ve.Value != s || v != (limits.Value{}) {
				t.Errorf("ParseKey(%q, %q) = %+v, %#v", key, s, v, err)
			}
			checkText(t, err)
			return
		}
		if !ok {
			t.Fatalf("ParseKey accepts the key %q", key)
		}
		if v.N == 0 && !v.None && info.Key != limits.KeySwap && info.Kind != limits.Dumps {
			t.Errorf("ParseKey(%s, %q) is zero", key, s)
		}
		checkSame(t, info, v)
	})
}
