package spec

// The annotations by which the engines of Kubernetes mark the pause container of
// a pod, which only holds its namespaces, and the one that names the pod.
var pauses = []struct{ kind, sandbox, pod string }{
	{"io.kubernetes.cri.container-type", "sandbox", "io.kubernetes.cri.sandbox-id"},   // containerd
	{"io.kubernetes.cri-o.ContainerType", "sandbox", "io.kubernetes.cri-o.SandboxID"}, // CRI-O
	{"io.kubernetes.docker.type", "podsandbox", ""},                                   // cri-dockerd
}

// Pause says whether a container is the pause container of a pod.
type Pause int

// The answers of Document.Pause.
const (
	NotPause     Pause = iota
	ClaimedPause       // it says so, and anybody could: give it no more than it could ask for
	KnownPause         // the pod has the id of this very container, which nobody knows before its engine makes it up
)

// Pause looks whether the container with an id is the pause container of a pod,
// as containerd, CRI-O and cri-dockerd mark it.
func (d *Document) Pause(id string) Pause {
	if !d.kubernetes() {
		return NotPause
	}
	answer := NotPause
	for _, p := range pauses {
		switch {
		case d.annotations[p.kind] != p.sandbox:
		case p.pod == "":
			answer = max(answer, ClaimedPause)
		case d.annotations[p.pod] == id:
			answer = KnownPause
		}
	}
	return answer
}
