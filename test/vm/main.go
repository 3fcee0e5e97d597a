package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/agentbox/agentbox/test/vm/internal/aptsource"
	"github.com/agentbox/agentbox/test/vm/internal/host"
	"github.com/agentbox/agentbox/test/vm/internal/image"
)

// Exit codes of the harness itself; a command that ran gives its own.
const (
	exitUsage       = 2
	exitTimeout     = 124
	exitHarness     = 125
	exitInterrupted = 130
)

//go:embed help.txt
var help string

func main() {
	os.Exit(mainWithCode(os.Args[1:], os.Stdout, os.Stderr))
}

func mainWithCode(arguments []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	code, err := dispatch(ctx, arguments, stdout, host.NewProgress(stderr))
	var usage usageError
	switch {
	case err == nil:
		return code
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "vm: interrupted (%v)\n", err)
		return exitInterrupted
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "vm: %v; \"go run ./test/vm help\" explains the flags\n", err)
		return exitUsage
	case errors.Is(err, errTimeout):
		fmt.Fprintf(stderr, "vm: %v\n", err)
		return exitTimeout
	default:
		fmt.Fprintf(stderr, "vm: %v\n", err)
		return exitHarness
	}
}

// usageError is a mistake in the arguments.
type usageError struct{ error }

// dispatch runs one command of the harness and returns the exit code of the
// command in the guest, if there was one.
func dispatch(ctx context.Context, arguments []string, stdout io.Writer, progress *host.Progress) (int, error) {
	if len(arguments) == 0 {
		return 0, usageError{errors.New("say what to do: image, run, shell or help")}
	}
	command := arguments[0]
	switch command {
	case "help", "-h", "-help", "--help":
		_, err := io.WriteString(stdout, help)
		return 0, err
	case "image", "run", "shell":
	default:
		return 0, usageError{fmt.Errorf("unknown command %q", command)}
	}
	o, err := parse(command, arguments[1:])
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, help)
		return 0, err
	}
	if err != nil {
		return 0, usageError{err}
	}
	if command == "image" {
		return 0, showImage(ctx, o, stdout, progress)
	}
	return boot(ctx, o, command == "shell", stdout, progress)
}

// showImage builds the image if needed and says what it is.
func showImage(ctx context.Context, o options, stdout io.Writer, progress *host.Progress) error {
	guestImage, err := ensureImage(ctx, o.suite, o.mirror, progress)
	if err != nil {
		return err
	}
	defer guestImage.Close()
	versions, err := guestImage.Versions()
	if err != nil {
		return err
	}
	size, err := guestImage.Size()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "image %s (%d MiB on disk)\n%s\n", guestImage.Folder(), size>>20, versions)
	return err
}

// ensureImage finds out where Debian comes from on this host and returns the
// image. The mirror is needed only for building.
func ensureImage(ctx context.Context, suite, mirror string, progress *host.Progress) (*image.Image, error) {
	if err := host.CheckPlatform(); err != nil {
		return nil, err
	}
	if mirror == "" {
		mirror = os.Getenv("AGENTBOX_VM_MIRROR")
	}
	if mirror == "" {
		var err error
		if mirror, err = hostMirror(); err != nil {
			return nil, err
		}
	}
	cache, err := image.CacheFolder(os.Getenv)
	if err != nil {
		return nil, err
	}
	return image.Ensure(ctx, progress, suite, cache, mirror)
}

// hostMirror is the Debian mirror of this host's own apt configuration.
func hostMirror() (string, error) {
	release, err := host.ReadRelease(os.DirFS("/"))
	if err != nil {
		return "", err
	}
	if release.ID != "debian" {
		return "", fmt.Errorf("%w: it is %q, so its mirror may not have Debian; give one with -mirror", host.ErrUnsupported, release.ID)
	}
	mirror, err := aptsource.Mirror(os.DirFS("/etc/apt"), release.Codename)
	if err != nil {
		return "", fmt.Errorf("find this host's Debian mirror (or give one with -mirror): %w", err)
	}
	return mirror, nil
}
