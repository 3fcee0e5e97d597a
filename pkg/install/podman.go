package install

// podmanTables are for a file in /etc/containers/containers.conf.d
// (containers.conf(5)).
func podmanTables(f *tomlFile, want Want) ([]table, []string, error) {
	own := table{path: []string{"engine", "runtimes"}, keys: []keyValue{{RuntimeName, []string{want.Runtime}}}}
	return f.unlessThere(own, below(own.path, RuntimeName))
}
