package spec_test

import (
	"testing"

	"github.com/agentbox/agentbox/pkg/spec"
)

func TestPause(t *testing.T) {
	for _, tt := range []struct {
		name, annotations string
		want              spec.Pause
	}{
		{"none", `{}`, spec.NotPause},
		{"containerd", `{"io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri.sandbox-id":"c1"}`, spec.KnownPause},
		{"CRI-O", `{"io.kubernetes.cri-o.ContainerType":"sandbox","io.kubernetes.cri-o.SandboxID":"c1","io.container.manager":"cri-o"}`, spec.KnownPause},
		{"cri-dockerd", `{"io.kubernetes.docker.type":"podsandbox"}`, spec.ClaimedPause},
		{"a container of the pod", `{"io.kubernetes.cri.container-type":"container","io.kubernetes.cri.sandbox-id":"c0"}`, spec.NotPause},
		{"a container of cri-dockerd", `{"io.kubernetes.docker.type":"container"}`, spec.NotPause},
		{"forged, since its id was not known", `{"io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri.sandbox-id":"c0"}`, spec.NotPause},
		{"forged, without a pod", `{"io.kubernetes.cri.container-type":"sandbox"}`, spec.NotPause},
		{"forged, with an empty pod", `{"io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri.sandbox-id":""}`, spec.NotPause},
		{"of two engines", `{"io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri.sandbox-id":"c1","io.kubernetes.docker.type":"podsandbox"}`, spec.KnownPause},
		{"Podman's", `{"io.kubernetes.cri-o.ContainerType":"sandbox","io.kubernetes.cri-o.SandboxID":"c1","io.container.manager":"libpod"}`, spec.NotPause},
		{"another case", `{"io.kubernetes.cri.container-type":"Sandbox","io.kubernetes.cri.sandbox-id":"c1"}`, spec.NotPause},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc, err := spec.Parse([]byte(`{"annotations":` + tt.annotations + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if got := doc.Pause("c1"); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
