package doctor

import "testing"

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]version{
		"6.1.0-18-amd64":       {6, 1, 0, 0},
		"7.2.7":                {7, 2, 7, 0},
		"5.15":                 {5, 15, 0, 0},
		"6.12-rc1":             {6, 12, 0, 1},
		"1.1.5+ds1-1+deb12u1":  {1, 1, 5, 0},
		"1.1.12-0ubuntu2":      {1, 1, 12, 0},
		"v1.4.0-rc.3":          {1, 4, 0, 3},
		"1.0.0~rc93+ds1":       {1, 0, 0, 93},
		"1.4.0-rc.3+dev":       {1, 4, 0, 3},
		"1.3.0-rc":             {1, 3, 0, 1},
		"6.1.":                 {6, 1, 0, 0},
		"":                     {},
		"6":                    {},
		"x.1":                  {},
		".1":                   {},
		"-6.1":                 {},
		"unknown":              {},
		"99999999999999999999": {},
	} {
		got, ok := parseVersion(text)
		if got != want || ok != (want != version{}) {
			t.Errorf("%q: %+v, %t; want %+v", text, got, ok, want)
		}
	}
}

func TestVersionBefore(t *testing.T) {
	inOrder := []string{"0.9", "1.0.0-rc93", "1.0.0", "1.1", "1.1.5", "1.1.12", "1.2.0-rc.1", "1.2.0", "1.4.0-rc.2", "1.4.0-rc.3", "1.4.0", "1.10", "2.0"}
	for i, older := range inOrder {
		for j, newer := range inOrder {
			a, _ := parseVersion(older)
			b, _ := parseVersion(newer)
			if got := a.before(b); got != (i < j) {
				t.Errorf("%s before %s: %t", older, newer, got)
			}
		}
	}
}

func FuzzParseVersion(f *testing.F) {
	f.Add("6.1.0-18-amd64")
	f.Add("v1.4.0-rc.3")
	f.Add("1.0.0~rc93+ds1")
	f.Fuzz(func(t *testing.T, text string) {
		v, ok := parseVersion(text)
		if v.major < 0 || v.minor < 0 || v.patch < 0 || v.candidate < 0 || !ok && v != (version{}) {
			t.Fatalf("%q: %+v, %t", text, v, ok)
		}
		if again, _ := parseVersion(v.String()); ok && again != v {
			t.Errorf("%q: %+v is written as %s, which is %+v", text, v, v, again)
		}
	})
}
