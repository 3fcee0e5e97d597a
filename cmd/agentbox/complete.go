package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// completions returns the ids and names that a shell can complete, without those
// that stand on the command line already.
func (c *catalog) completions(given []string) []cobra.Completion {
	var list []cobra.Completion
	add := func(word, description string) {
		if word != "" && !slices.Contains(given, word) {
			list = append(list, cobra.CompletionWithDesc(clean(word), clean(description)))
		}
	}
	for _, st := range c.live {
		name, what := harvest.Name(st.State), "live"
		if st.Started == nil {
			what = string(verdict.Created)
		}
		add(st.ID, name+" "+what)
		add(name, what)
	}
	names := map[string]bool{}
	for _, s := range c.ended() {
		add(s.id, s.kept.Name+" "+string(s.kept.Status))
		if !names[s.kept.Name] {
			names[s.kept.Name] = true
			add(s.kept.Name, string(s.kept.Status))
		}
	}
	return list
}
