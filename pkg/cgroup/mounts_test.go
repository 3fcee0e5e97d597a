package cgroup

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkParse5000Mounts is a host with many containers.
func BenchmarkParse5000Mounts(b *testing.B) {
	var text strings.Builder
	text.WriteString("30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n")
	for i := range 5000 {
		fmt.Fprintf(&text, "%d 27 0:%d / /var/lib/docker/overlay2/%064x/merged rw,relatime shared:%d - overlay overlay rw,"+
			"lowerdir=/var/lib/docker/overlay2/l/QWERTYUIOPASDFGHJKLZXCVBNM:/var/lib/docker/overlay2/l/MNBVCXZLKJHGFDSAPOIUYTREWQ,"+
			"upperdir=/var/lib/docker/overlay2/%064x/diff,workdir=/var/lib/docker/overlay2/%064x/work\n", 100+i, 50+i, i, i, i, i)
	}
	data := []byte(text.String())
	b.ReportAllocs()
	for b.Loop() {
		if mounts, err := ParseMounts(data); err != nil || len(mounts) != 1 {
			b.Fatal(mounts, err)
		}
	}
}
