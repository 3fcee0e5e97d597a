package precision

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agentbox/agentbox/test/bench/internal/job"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// The limits that are measured.
const (
	limitMiB = 20
	limitBPS = limitMiB << 20
	limitOps = 200
)

const (
	bigBlock   = 1 << 20
	smallBlock = 4 << 10
	dataSize   = 64 << 20 // of the file that is there already
)

// ioLimits returns lines of a configuration: the values given, and no limit for
// the other keys of the io dimension, which have defaults.
func ioLimits(values map[string]string) []string {
	var lines []string
	for _, key := range []string{"io_read_bps", "io_write_bps", "io_read_iops", "io_write_iops"} {
		value, ok := values[key]
		if !ok {
			value = `"none"`
		}
		lines = append(lines, key+" = "+value)
	}
	return lines
}

func unlimited() []string { return ioLimits(nil) }

func limitedBytes() []string {
	text := fmt.Sprintf(`"%dMiB"`, limitMiB)
	return ioLimits(map[string]string{"io_read_bps": text, "io_write_bps": text})
}

func limitedOperations() []string {
	text := fmt.Sprint(limitOps)
	return ioLimits(map[string]string{"io_read_iops": text, "io_write_iops": text})
}

// use is one way to use a disk.
type use struct {
	what  string
	unit  Unit
	limit float64
	job   job.Job // but for its Bytes
}

// uses are what is measured in one sandbox, one after the other, with these
// limits.
type uses struct {
	limits []string
	list   []use
}

func allUses() []uses {
	direct := job.Job{Direct: true, Block: bigBlock}
	read, write, buffered := direct, direct, job.Job{Kind: job.Write, File: newFile, Block: bigBlock}
	read.Kind, read.File, read.Size = job.Read, dataFile, dataSize
	write.Kind, write.File = job.Write, newFile
	// Once, at the end.
	buffered.Fsync = 1 << 40

	readSmall, writeSmall := read, read
	readSmall.Block, writeSmall.Block = smallBlock, smallBlock
	writeSmall.Kind = job.Write
	return []uses{
		{limitedBytes(), []use{
			{"read, direct", Bytes, limitBPS, read},
			{"write, direct", Bytes, limitBPS, write},
			{"write, buffered + fsync", Bytes, limitBPS, buffered},
		}},
		{limitedOperations(), []use{
			{"read 4 KiB, direct", Operations, limitOps, readSmall},
			{"write 4 KiB, direct", Operations, limitOps, writeSmall},
		}},
	}
}

// lasting is the job of a use that takes some seconds at the rate of the limit.
func (u use) lasting(seconds float64) job.Job {
	j := u.job
	calls := u.limit * seconds
	if u.unit == Bytes {
		calls /= float64(j.Block)
	}
	j.Bytes = max(1, int64(calls)) * j.Block
	return j
}

// rates returns the rates of a use: by the kernel's counters and by the
// program's.
func (u use) rates(io sandbox.IO, o job.Outcome) (kernel, clock float64) {
	n, own := io.Reads, o.Calls
	switch {
	case u.unit == Bytes && u.job.Kind == job.Write:
		n, own = io.WriteBytes, o.Bytes
	case u.unit == Bytes:
		n, own = io.ReadBytes, o.Bytes
	case u.job.Kind == job.Write:
		n = io.Writes
	}
	return float64(n) / o.Seconds, float64(own) / o.Seconds
}

// IO measures the limits of a disk in a place.
func (m *Meter) IO(place Place) ([]Series, error) {
	if err := place.fill(); err != nil {
		return nil, fmt.Errorf("make a file on %s: %w", place.Name, err)
	}
	var all []Series
	for _, uses := range allUses() {
		if m.BytesOnly && uses.list[0].unit != Bytes {
			continue
		}
		series := make([]Series, len(uses.list))
		for i, u := range uses.list {
			series[i] = Series{Place: place.Name, What: u.what, Unit: u.unit, Limit: u.limit, Tolerance: m.IOTolerance}
		}
		for run := range m.Runs {
			err := m.each(place, uses.list, uses.limits, func(i int, kernel, clock float64) {
				s := &series[i]
				s.Kernel, s.Clock = append(s.Kernel, kernel), append(s.Clock, clock)
				m.logf("%s, %s, run %d: %.2f of the limit by the kernel, %.2f by the clock", s.Place, s.What, run+1, kernel/s.Limit, clock/s.Limit)
			})
			if err != nil {
				return nil, err
			}
		}
		if err := m.control(place, uses.list, series); err != nil {
			return nil, err
		}
		all = append(all, series...)
	}
	return all, nil
}

// control fills in what is reached without the limits. That takes little time, so
// it is done several times in one sandbox.
func (m *Meter) control(place Place, list []use, series []Series) error {
	free := make([][]float64, len(list))
	err := m.each(place, slices.Repeat(list, 3), unlimited(), func(i int, _, clock float64) {
		i %= len(list)
		free[i] = append(free[i], clock)
	})
	for i := range series {
		series[i].Free = stats.Median(free[i])
	}
	return err
}

// each does one thing after the other in one sandbox and tells the rates.
func (m *Meter) each(place Place, list []use, limits []string, tell func(i int, kernel, clock float64)) (err error) {
	box, err := m.Runtime.Start(place.want(limits))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Stop()) }()
	for i, u := range list {
		if err := place.settle(); err != nil {
			return err
		}
		before, err := box.IO(place.Disk)
		if err != nil {
			return err
		}
		o, err := box.Do(u.lasting(m.Work.Seconds()))
		if err != nil {
			return fmt.Errorf("%s on %s: %w", u.what, place.Name, err)
		}
		after, err := box.IO(place.Disk)
		if err != nil {
			return err
		}
		kernel, clock := u.rates(after.Sub(before), o)
		tell(i, kernel, clock)
	}
	return nil
}
