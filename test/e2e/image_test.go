//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
)

// Images without a registry: an archive that containerd imports.

const ociMedia = "application/vnd.oci.image."

// imageArchive is an image layout in a tar file (opencontainers/image-spec,
// image-layout.md), as far as it was written.
type imageArchive struct {
	w    *tar.Writer
	done []string // digests of the blobs that are in it
}

// descriptor points to a blob (opencontainers/image-spec, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// writeImages writes an archive of images that all have one layer, the files, and
// one command, under different names.
func writeImages(archive string, names []string, files fs.FS, entrypoint []string) error {
	f, err := os.OpenFile(archive, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	a := imageArchive{w: tar.NewWriter(f)}
	var index []descriptor
	for _, name := range names {
		d, err := a.image(files, entrypoint)
		if err != nil {
			return err
		}
		d.Annotations = map[string]string{"io.containerd.image.name": name}
		index = append(index, d)
	}
	if err := a.json("index.json", map[string]any{"schemaVersion": 2, "mediaType": ociMedia + "index.v1+json", "manifests": index}); err != nil {
		return err
	}
	if err := a.json("oci-layout", map[string]any{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	if err := a.w.Close(); err != nil {
		return err
	}
	return f.Close()
}

// image writes an image and returns its manifest.
func (a *imageArchive) image(files fs.FS, entrypoint []string) (descriptor, error) {
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	if err := w.AddFS(files); err != nil {
		return descriptor{}, err
	}
	if err := w.Close(); err != nil {
		return descriptor{}, err
	}
	layer, err := a.blob(ociMedia+"layer.v1.tar", data.Bytes())
	if err != nil {
		return layer, err
	}
	config, err := a.jsonBlob("config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/bin"}, "Entrypoint": entrypoint},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	if err != nil {
		return config, err
	}
	return a.jsonBlob("manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": ociMedia + "manifest.v1+json", "config": config, "layers": []descriptor{layer},
	})
}

func (a *imageArchive) jsonBlob(kind string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(ociMedia+kind, data)
}

func (a *imageArchive) json(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.file(name, data)
}

// blob writes a blob, once.
func (a *imageArchive) blob(media string, data []byte) (descriptor, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	d := descriptor{MediaType: media, Digest: "sha256:" + sum, Size: len(data)}
	if slices.Contains(a.done, sum) {
		return d, nil
	}
	a.done = append(a.done, sum)
	return d, a.file("blobs/sha256/"+sum, data)
}

func (a *imageArchive) file(name string, data []byte) error {
	if err := a.w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := a.w.Write(data)
	return err
}
