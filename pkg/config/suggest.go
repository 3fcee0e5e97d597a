package config

import "github.com/agentbox/agentbox/pkg/limits"

// nearest returns the known word that a person most likely meant, or "".
func nearest(word string, known []string) string {
	// The name of a dimension stands for its key: cpu for cpus.
	for _, info := range limits.Keys {
		if word == string(info.Dimension) && word != string(info.Key) {
			word = string(info.Key)
			break
		}
	}
	best, least := "", len(word)/3+1
	for _, k := range known {
		if d := distance(word, k, least); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance returns the number of edits between two words: a letter inserted,
// removed, replaced, or swapped with its neighbour. It gives up at limit.
func distance(a, b string, limit int) int {
	if abs(len(a)-len(b)) >= limit {
		return limit
	}
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}

func abs(n int) int { return max(n, -n) }
