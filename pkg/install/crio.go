package install

// crioTables are for a file in /etc/crio/crio.conf.d (crio.conf(5)). CRI-O hands
// all annotations of a pod on to its containers.
func crioTables(f *tomlFile, want Want) ([]table, []string, error) {
	own := table{
		path: []string{"crio", "runtime", "runtimes", RuntimeName}, whole: true,
		keys: []keyValue{{"runtime_path", want.Runtime}, {"runtime_type", "oci"}},
	}
	return f.unlessThere(own, own.path)
}
