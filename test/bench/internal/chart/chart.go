// Package chart draws results as bars, in SVG: small, without scripts or fonts of
// its own, readable on light and on dark pages.
package chart

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// Bar is a measured value, as a part of what it should be: 1 is just right.
type Bar struct {
	Label     string
	Value     float64
	Worst     float64 // the run that was farthest from 1
	Tolerance float64 // the target is from 1-Tolerance to 1+Tolerance
	Met       bool
}

// Group is bars under one heading.
type Group struct {
	Title string
	Bars  []Bar
}

// Sizes, in pixels.
const (
	labelWidth = 180 // what stands left of the bars
	plotWidth  = 330
	valueWidth = 110 // what stands right of them
	rowHeight  = 18
	barHeight  = 10
	headHeight = 26 // of a group
	top        = 30 // above the first group
	bottom     = 24 // the scale
)

// scale is the value at the right edge of the plot.
const scale = 1.5

func x(value float64) float64 { return labelWidth + min(max(value, 0), scale)/scale*plotWidth }

const style = `
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title, .head { font-weight: 600 }
  .small { fill: #59636e; font-size: 11px }
  .bar { fill: #0969da } .missed { fill: #cf222e } text.missed { font-weight: 600 }
  .band { fill: #1a7f37; fill-opacity: .18 }
  .grid { stroke: #59636e; stroke-opacity: .25 } .one { stroke: #1a7f37 } .worst { stroke: #1f2328; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 }
    .bar { fill: #4493f8 } .missed, text.missed { fill: #ff7b72 }
    .band { fill: #3fb950 } .grid { stroke: #9198a1 } .one { stroke: #3fb950 } .worst { stroke: #f0f6fc }
  }
`

// SVG draws groups of bars below each other. Values beyond 1.5 end at the edge;
// their number says what they are.
func SVG(title string, groups []Group) string {
	height := top + bottom
	for _, g := range groups {
		height += headHeight + rowHeight*len(g.Bars)
	}
	const width = labelWidth + plotWidth + valueWidth
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&out, "<title>%s</title>\n<style>%s</style>\n", text(title), style)
	fmt.Fprintf(&out, `<text class="title" x="0" y="14">%s</text>`+"\n", text(title))
	foot := height - bottom
	for i := range 4 {
		value := float64(i) * 0.5
		fmt.Fprintf(&out, `<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x(value), top, x(value), foot)
		fmt.Fprintf(&out, `<text class="small" x="%.1f" y="%d" text-anchor="middle">%.1f</text>`+"\n", x(value), height-8, value)
	}
	y := top
	for _, g := range groups {
		fmt.Fprintf(&out, `<text class="head" x="0" y="%d">%s</text>`+"\n", y+17, text(g.Title))
		y += headHeight
		for _, b := range g.Bars {
			bar(&out, b, y)
			y += rowHeight
		}
	}
	fmt.Fprintf(&out, `<line class="one" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n</svg>\n", x(1), top, x(1), foot)
	return out.String()
}

// bar draws one row whose upper edge is y: the target, the value, the worst run.
func bar(out io.Writer, b Bar, y int) {
	class, note := "bar", ""
	if !b.Met {
		class, note = "missed", " not met"
	}
	middle := y + rowHeight/2
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, middle+4, text(b.Label))
	fmt.Fprintf(out, `<rect class="band" x="%.1f" y="%d" width="%.1f" height="%d"/>`, x(1-b.Tolerance), y, x(1+b.Tolerance)-x(1-b.Tolerance), rowHeight)
	fmt.Fprintf(out, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`, class, labelWidth, middle-barHeight/2, x(b.Value)-labelWidth, barHeight)
	fmt.Fprintf(out, `<line class="worst" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x(b.Worst), middle-barHeight/2-1, x(b.Worst), middle+barHeight/2+1)
	// The colour alone would not tell everybody.
	if b.Met {
		class = "small"
	}
	fmt.Fprintf(out, `<text class="%s" x="%d" y="%d">%.3f%s</text>`+"\n", class, labelWidth+plotWidth+10, middle+4, b.Value, note)
}

// text is what SVG shows as s.
func text(s string) string {
	var out strings.Builder
	// A strings.Builder takes everything.
	_ = xml.EscapeText(&out, []byte(s))
	return out.String()
}
