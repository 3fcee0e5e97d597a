package fallback
import "github.com/agentbox/agentbox/pkg/procfs"
type memoryMeter struct{ r procfs.Reader }
func (m *memoryMeter) decide(members []member, limit int64) (int64, error) {
	var sum int64
	for i := range members {
		if st, err := m.r.Statm(members[i].dir); err == nil { sum += st.Resident }
	}
	return sum, nil
}
