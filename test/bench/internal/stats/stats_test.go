package stats

import (
	"slices"
	"testing"
)

func TestQuantile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	tests := []struct {
		name   string
		values []int
		q      float64
		want   int
	}{
		{"no values", nil, 0.5, 0},
		{"one value", []int{7}, 0.99, 7},
		{"median of an odd number", []int{9, 1, 5}, 0.5, 5},
		{"median of an even number was measured", []int{4, 1, 3, 2}, 0.5, 2},
		{"p99 of a hundred", hundred, 0.99, 99},
		{"p50 of a hundred", hundred, 0.5, 50},
		{"lowest", []int{3, 1, 2}, 0, 1},
		{"highest", []int{3, 1, 2}, 1, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.values)
			if got := Quantile(tt.values, tt.q); got != tt.want {
				t.Errorf("Quantile(%v, %v) = %v, want %v", tt.values, tt.q, got, tt.want)
			}
			if !slices.Equal(tt.values, before) {
				t.Error("the values were put in another order")
			}
		})
	}
}

func TestFarthest(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   float64
	}{
		{"no values", nil, 0},
		{"above", []float64{1.01, 1.2, 0.9}, 1.2},
		{"below", []float64{1.01, 1.05, 0.5}, 0.5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Farthest(tt.values, 1); got != tt.want {
				t.Errorf("Farthest(%v, 1) = %v, want %v", tt.values, got, tt.want)
			}
		})
	}
}
