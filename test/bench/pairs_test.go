package main

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	ms := func(n ...int) (list []time.Duration) {
		for _, n := range n {
			list = append(list, time.Duration(n)*time.Millisecond)
		}
		return list
	}
	one := func(a, b int, aParts, bParts []time.Duration) pair {
		return pair{a: ms(a)[0], b: ms(b)[0], aParts: aParts, bParts: bParts}
	}
	// The machine is slow in the last pair: both take longer, and the ratio does
	// not change.
	got := summarize("what", []pair{
		one(20, 10, ms(5, 15), ms(5, 5)),
		one(30, 10, ms(5, 25), ms(5, 5)),
		one(200, 100, ms(50, 150), ms(50, 50)),
	}, 2.5)
	want := comparison{
		Name: "what", Pairs: 3, A: 0.03, B: 0.01, Ratio: 2, Low: 2, High: 3, Target: 2.5,
		Parts: [][2]float64{{0.005, 0.005}, {0.025, 0.005}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !got.met() {
		t.Error("a ratio of 2 does not meet 2.5")
	}
	got.Target = 1.9
	if got.met() {
		t.Error("a ratio of 2 meets 1.9")
	}
}

func TestStepIsTimedWithoutWhatIsAround(t *testing.T) {
	var order []string
	note := func(name string, long time.Duration) func() error {
		return func() error {
			time.Sleep(long)
			order = append(order, name)
			return nil
		}
	}
	s := step{
		args:   []string{"true"},
		before: note("before", 200*time.Millisecond),
		then:   []func() error{note("then", 0)},
		after:  note("after", 200*time.Millisecond),
	}
	began := time.Now()
	took, parts, err := s.time()
	all := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	if took > all-400*time.Millisecond || len(parts) != 2 { // whatever else the machine does
		t.Errorf("took %v of %v in %d parts", took, all, len(parts))
	}
	if got := strings.Join(order, " "); got != "before then after" {
		t.Errorf("done in the order %s", got)
	}
}

func TestCommandsThatFailEndTheRun(t *testing.T) {
	if _, err := compare("what", 1, step{args: []string{"false"}}, step{args: []string{"true"}}, 0); err == nil || !strings.Contains(err.Error(), "what") {
		t.Errorf("error %v, want one that names the figure", err)
	}
	if err := detached([]string{"false"})(); err == nil {
		t.Error("a detached command may fail")
	}
}
