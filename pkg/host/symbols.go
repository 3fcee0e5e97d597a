package host

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/agentbox/agentbox/pkg/note"
	"github.com/agentbox/agentbox/pkg/smallfile"
)

const (
	symbolsFile = "/proc/kallsyms"
	bootIDFile  = "/proc/sys/kernel/random/boot_id"
)

// hasFunction reports whether a function is built into the running kernel. The
// kernel writes its list of symbols anew for each reader, megabytes in tens of
// milliseconds, so that the answer is noted: it holds until the next boot. A
// kernel that has no list (CONFIG_KALLSYMS) or hides it is an error, and that is
// never noted.
func (p *prober) hasFunction(name string) (bool, error) {
	boot := p.bootID()
	if answer, ok := p.recall(name, boot); ok {
		return answer, nil
	}
	f, err := smallfile.Open(p.fs.Path(symbolsFile), 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	// "ffffffff81a2b3c0 t throtl_pd_alloc"; what is in a module has its name
	// behind.
	has, err := contains(f, []byte(" "+name+"\n"))
	if err == nil {
		p.remember(name, boot, has)
	}
	return has, err
}

// bootID tells one boot from another (random(4)); empty when it is not known.
func (p *prober) bootID() string {
	if p.in.Notes == "" {
		return ""
	}
	id, err := p.fs.ReadFile(bootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// What a note about a function says.
const noteYes, noteNo = "yes", "no"

// recall returns what was noted since the boot. A note that says anything else
// is none.
func (p *prober) recall(name, boot string) (has, ok bool) {
	if boot == "" {
		return false, false
	}
	text, _ := note.Read(p.in.Notes, name, boot)
	return text == noteYes, text == noteYes || text == noteNo
}

func (p *prober) remember(name, boot string, has bool) {
	if boot == "" {
		return
	}
	text := noteNo
	if has {
		text = noteYes
	}
	note.Write(p.in.Notes, name, boot, text)
}

// contains looks for a text in a long one, and does not hold all of it. Nothing
// to read at all is io.ErrUnexpectedEOF.
func contains(r io.Reader, text []byte) (bool, error) {
	buf := make([]byte, 64<<10)
	kept, total := 0, 0 // the end of what was read before stays at the start of buf
	for {
		n, err := r.Read(buf[kept:])
		total += n
		n += kept
		if bytes.Contains(buf[:n], text) {
			return true, nil
		}
		switch {
		case errors.Is(err, io.EOF) && total > 0:
			return false, nil
		case errors.Is(err, io.EOF):
			return false, io.ErrUnexpectedEOF
		case err != nil:
			return false, err
		}
		kept = copy(buf, buf[max(0, n-len(text)+1):n])
	}
}
