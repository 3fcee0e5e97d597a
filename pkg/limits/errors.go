package limits

import (
	"fmt"
	"strings"
)

// RequestError says that a container asked for something that cannot be given.
// Its text is one sentence for a person.
type RequestError struct {
	Key    Key    // the setting that is wrong; empty when it is not one setting
	Source Source // where the value came from
	Text   string
}

func (e *RequestError) Error() string { return e.Text }

// Missing is one dimension that strict mode requires and that does not hold.
type Missing struct {
	Dimension Dimension
	Reason    string
}

// UnenforceableError says that strict mode promised dimensions that are not
// enforced here. It lists all of them.
type UnenforceableError struct {
	Missing []Missing
}

func (e *UnenforceableError) Error() string {
	parts := make([]string, 0, len(e.Missing))
	for _, m := range e.Missing {
		parts = append(parts, fmt.Sprintf("%s (%s)", m.Dimension, m.Reason))
	}
	return "strict mode: this host does not enforce " + strings.Join(parts, ", ") +
		"; fix the host, remove the dimension from strict_require, or set mode = \"auto\""
}
