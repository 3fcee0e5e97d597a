package main

import "testing"

func TestContainerdVersion(t *testing.T) {
	for out, want := range map[string]string{
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n":                         "1.6.20",
		"containerd github.com/containerd/containerd/v2 2.1.9+ds1 2.1.9+ds1-5\n":                                "2.1.9",
		"containerd github.com/containerd/containerd/v2 v2.4.2 0c3d2ecb8a1aa5b5a9dbb4b2ad4b1bb4c7d1c0b5\n":      "2.4.2",
		"containerd github.com/containerd/containerd/v2 v2.3.0-rc.1 0c3d2ecb8a1aa5b5a9dbb4b2ad4b1bb4c7d1c0b5\n": "2.3.0",
		"containerd\n": "",
	} {
		if got := containerdVersion(out); got != want {
			t.Errorf("%q: %q, want %q", out, got, want)
		}
	}
}
