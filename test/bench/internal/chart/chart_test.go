package chart

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func sample() []Group {
	return []Group{
		{"CPU", []Bar{
			{Label: "0.25 CPUs", Value: 1.001, Worst: 1.012, Tolerance: 0.04, Met: true},
			{Label: "0.5 CPUs", Value: 0.9, Worst: 0.7, Tolerance: 0.04},
		}},
		{"20 MiB/s <on> \"ext4\" & others", []Bar{
			{Label: "write, buffered", Value: 7.5, Worst: 8, Tolerance: 0.1},
			{Label: "nothing", Tolerance: 0.1},
		}},
	}
}

func TestSVG(t *testing.T) {
	got := SVG("Measured / limit", sample())
	const golden = "testdata/chart.svg"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the chart is not %s; -update writes it:\n%s", golden, got)
	}
}

func TestSVGIsXML(t *testing.T) {
	for d := xml.NewDecoder(strings.NewReader(SVG("a < b", sample()))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBarsStayInThePlot(t *testing.T) {
	for _, value := range []float64{-1, 0, 0.5, 1, scale, 1e9} {
		if got := x(value); got < labelWidth || got > labelWidth+plotWidth {
			t.Errorf("%v is drawn at %v", value, got)
		}
	}
}
