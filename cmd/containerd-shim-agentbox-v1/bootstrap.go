package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/atomicfile"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The start of a shim differs between containerd's versions:
//
//	version      standard input      MAX_SHIM_VERSION   is read from standard output
//	1.6          the options or ""   not set            the address, and the file "address" after a restart
//	1.7 to 2.2   the options or ""   2                  JSON with a version of at most that
//	2.3 on       BootstrapParams     2                  BootstrapResult
//
// containerd's own package serves the last one only. This file serves the
// others (core/runtime/v2/README.md of containerd 1.7 and 2.4).

// maxInput bounds what is read from standard input, in bytes, as containerd's
// shim package does.
const maxInput = 10 << 20

// The environment of a call by containerd.
const (
	maxVersionEnv   = "MAX_SHIM_VERSION"
	ttrpcAddressEnv = "TTRPC_ADDRESS"
)

// addressFile is where containerd 1.6 looks for a shim after its own restart.
const addressFile = "address"

// call is the command line by which containerd calls a shim.
type call struct {
	action        string // start, delete, or "" for the server
	id, namespace string
	address       string // of containerd's gRPC API
	binary        string // of containerd
	debug         bool
}

// parseCall reads a command line; ok says that it is one to start a shim. All
// others, and wrong ones, are left to containerd's shim package.
func parseCall(args []string) (c call, ok bool) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.id, "id", "", "")
	flags.StringVar(&c.namespace, "namespace", "", "")
	flags.StringVar(&c.address, "address", "", "")
	flags.StringVar(&c.binary, "publish-binary", "", "")
	flags.BoolVar(&c.debug, "debug", false, "")
	for _, name := range []string{"socket", "debug-socket", "bundle"} {
		_ = flags.String(name, "", "")
	}
	for _, name := range []string{"v", "version", "info"} {
		if flags.Bool(name, false, ""); contains(args, name) {
			return c, false
		}
	}
	if flags.Parse(args) != nil {
		return c, false
	}
	c.action = flags.Arg(0)
	return c, c.action == "start" && c.id != "" && c.namespace != ""
}

// contains reports whether a boolean flag is given, with one or two dashes.
func contains(args []string, name string) bool {
	for _, a := range args {
		if a == "-"+name || a == "--"+name {
			return true
		}
	}
	return false
}

// bootstrap starts a shim for a containerd that speaks an older protocol, and
// ends the process. For all other calls it returns, and containerd's shim package
// goes on.
func bootstrap(ctx context.Context, s shim.Shim, args []string) error {
	c, ok := parseCall(args)
	if !ok {
		return nil
	}
	input, err := io.ReadAll(io.LimitReader(os.Stdin, maxInput+1))
	if err != nil {
		return fmt.Errorf("read what containerd sent: %w", err)
	}
	if len(input) > maxInput {
		return fmt.Errorf("containerd sent more than %d bytes of options", maxInput)
	}
	if params := bootstrapParams(input, c); params != nil {
		if os.Getenv(ttrpcAddressEnv) == "" { // the server finds containerd by it
			_ = os.Setenv(ttrpcAddressEnv, params.GetContainerdTtrpcAddress())
		}
		os.Stdin, err = again(input)
		return err
	}
	// Else a containerd that has gone ends this process before it has cleared
	// away. Not ignored, which the shim and its containers would inherit.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	if err := start(ctx, s, c, os.Getenv, input, os.Stdout); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// bootstrapParams reads the message of containerd 2.3; nil: it is none. Options
// can read as one, but then do not have the id and the namespace of the command
// line.
func bootstrapParams(input []byte, c call) *bootapi.BootstrapParams {
	var params bootapi.BootstrapParams
	if proto.Unmarshal(input, &params) != nil || params.GetInstanceID() != c.id || params.GetNamespace() != c.namespace {
		return nil
	}
	return &params
}

// again returns a file from which the input is read once more.
func again(input []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("hand on what containerd sent: %w", err)
	}
	go func() {
		_, _ = w.Write(input) // the reader sees a short message
		_ = w.Close()
	}()
	return r, nil
}

// start starts a shim in the current folder, the bundle, and answers the calling
// containerd.
func start(ctx context.Context, s shim.Shim, c call, getenv func(string) string, input []byte, to io.Writer) error {
	params, err := legacyParams(c, getenv(ttrpcAddressEnv), input)
	if err != nil {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, c.namespace)
	ctx = context.WithValue(ctx, shim.OptsKey{}, shim.Opts{Debug: c.debug})
	result, err := s.Start(ctx, params)
	if err != nil {
		return err
	}
	if err := answer(result, getenv(maxVersionEnv), to); err != nil {
		_ = os.Remove(addressFile) // may not be there
		return errors.Join(err, stopUnused(ctx, c.id, result.GetAddress()))
	}
	return nil
}

func answer(result *bootapi.BootstrapResult, maxVersion string, to io.Writer) error {
	text, err := reply(result, maxVersion)
	if err != nil {
		return fmt.Errorf("answer containerd: %w", err)
	}
	if err := writeAddress(result.GetAddress()); err != nil {
		return err
	}
	if _, err := to.Write(text); err != nil {
		return fmt.Errorf("answer containerd: %w", err)
	}
	return nil
}

// legacyParams is what containerd 2.3 would have sent for a call.
func legacyParams(c call, ttrpcAddress string, input []byte) (*bootapi.BootstrapParams, error) {
	params := &bootapi.BootstrapParams{
		InstanceID:             c.id,
		Namespace:              c.namespace,
		LogLevel:               bootapi.LogLevel_LOG_LEVEL_INFO,
		ContainerdGrpcAddress:  c.address,
		ContainerdTtrpcAddress: ttrpcAddress,
		ContainerdBinary:       c.binary,
	}
	if c.debug {
		params.LogLevel = bootapi.LogLevel_LOG_LEVEL_DEBUG
	}
	if len(input) == 0 {
		return params, nil
	}
	var options anypb.Any
	if err := proto.Unmarshal(input, &options); err != nil {
		return nil, fmt.Errorf("the options on standard input are no google.protobuf.Any: %w", err)
	}
	if err := params.AddExtension(&options); err != nil {
		return nil, fmt.Errorf("take in the options: %w", err)
	}
	return params, nil
}

// reply is what a containerd older than 2.3 reads: JSON of a version that it
// says it knows, or the address alone where it says nothing.
func reply(result *bootapi.BootstrapResult, maxVersion string) ([]byte, error) {
	known, err := strconv.Atoi(maxVersion)
	if err != nil || known < 2 {
		return []byte(result.GetAddress()), nil
	}
	return json.Marshal(struct {
		Version  int    `json:"version"`
		Address  string `json:"address"`
		Protocol string `json:"protocol"`
	}{min(known, int(result.GetVersion())), result.GetAddress(), result.GetProtocol()})
}

func writeAddress(address string) error {
	f, err := atomicfile.New(addressFile, 0o600)
	if err != nil {
		return fmt.Errorf("write the address of the shim: %w", err)
	}
	if _, err := f.Write([]byte(address)); err != nil {
		return errors.Join(fmt.Errorf("write the address of the shim: %w", err), f.Cancel())
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write the address of the shim: %w", err)
	}
	return nil
}

// stopUnused ends a shim that containerd will never hear of, unless it serves
// other containers of a pod.
func stopUnused(ctx context.Context, id, address string) error {
	conn, err := shim.AnonDialer(address, 5*time.Second)
	if err != nil {
		return fmt.Errorf("connect to the shim: %w", err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = taskapi.NewTTRPCTaskClient(client).Shutdown(ctx, &taskapi.ShutdownRequest{ID: id})
	if err != nil && !errors.Is(err, ttrpc.ErrClosed) { // it may be gone before it has answered
		return fmt.Errorf("stop the shim: %w", err)
	}
	return nil
}
