// Package promise is the gate of unit tests that need something of the machine.
package promise

import (
	"os"
	"testing"
)

// Lacks skips a test, since this machine lacks what it needs; or fails it where
// AGENTBOX_TEST_REQUIRE=1 promises that nothing is lacking, as `make test` does.
func Lacks(t testing.TB, why ...any) {
	t.Helper()
	if os.Getenv("AGENTBOX_TEST_REQUIRE") == "1" {
		t.Fatal(append([]any{"this run promised that the machine has what its tests need: "}, why...)...)
	}
	t.Skip(why...)
}
