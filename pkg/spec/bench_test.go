package spec_test

import (
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

// BenchmarkRewrite is what every container pays at create, on a file of Docker's
// size: parse, request, resolve, apply, render.
func BenchmarkRewrite(b *testing.B) {
	data, w := fixtures(b)["docker"], goldenWorld()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.rewrite(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRewriteSteps(b *testing.B) {
	data, w := fixtures(b)["docker"], goldenWorld()
	doc, err := spec.Parse(data)
	if err != nil {
		b.Fatal(err)
	}
	req, err := doc.Request("/bundle")
	if err != nil {
		b.Fatal(err)
	}
	plan, err := limits.Resolve(w.policy, req, w.host)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = spec.Parse(data) // it has worked above
		}
	})
	b.Run("Request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = doc.Request("/bundle")
		}
	})
	b.Run("Resolve", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = limits.Resolve(w.policy, req, w.host)
		}
	})
	b.Run("Apply", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = doc.Apply(plan, spec.Options{Hook: w.hook})
		}
	})
	b.Run("Bytes", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = doc.Bytes()
		}
	})
}
