package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// terminal is the user's terminal while a guest has it.
type terminal struct {
	descriptor int
	saved      *unix.Termios
}

// openTerminal remembers the settings of standard input.
func openTerminal() (*terminal, error) {
	descriptor := int(os.Stdin.Fd())
	settings, err := unix.IoctlGetTermios(descriptor, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("shell needs a terminal as its input (run takes scripts): %w", err)
	}
	return &terminal{descriptor: descriptor, saved: settings}, nil
}

// raw hands every key to the guest, Ctrl-C included.
func (t *terminal) raw() error {
	settings := *t.saved
	settings.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	settings.Oflag &^= unix.OPOST
	settings.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	settings.Cflag = settings.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	settings.Cc[unix.VMIN], settings.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(t.descriptor, unix.TCSETS, &settings); err != nil {
		return fmt.Errorf("hand the terminal to the guest: %w", err)
	}
	return nil
}

// restore gives the terminal back as it was.
func (t *terminal) restore() {
	// Nothing can be done about a terminal that is gone.
	_ = unix.IoctlSetTermios(t.descriptor, unix.TCSETS, t.saved)
}

// size returns rows and columns, or what a plain terminal has.
func (t *terminal) size() (rows, columns int) {
	window, err := unix.IoctlGetWinsize(t.descriptor, unix.TIOCGWINSZ)
	if err != nil || window.Row == 0 || window.Col == 0 {
		return 24, 80
	}
	return int(window.Row), int(window.Col)
}
