package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

const (
	// Prefix is the beginning of the name of every annotation of agentbox.
	Prefix = "agentbox.dev/"

	// ProfileAnnotation picks a profile.
	ProfileAnnotation = Prefix + "profile"

	// OOMScopeAnnotation says what dies when memory runs out.
	OOMScopeAnnotation = Prefix + "oom-scope"
)

// AnnotationName returns the annotation that sets a key: agentbox.dev/io-read-bps
// for io_read_bps.
func AnnotationName(key limits.Key) string {
	return Prefix + strings.ReplaceAll(string(key), "_", "-")
}

// ApplyAnnotations adds what a container's agentbox.dev/* annotations ask for
// to a request; all others are ignored, and so is spec.ReservedAnnotation. A value is read by ParseKey. Whether
// the profile exists, and whether the policy allows the scope, is for
// limits.Resolve to say.
//
// The error is an *AnnotationError about the first annotation, in the order of
// names, that is unknown or malformed; the request is then unchanged.
func ApplyAnnotations(annotations map[string]string, req *limits.Request) error {
	var names []string
	for name := range annotations {
		if strings.HasPrefix(name, Prefix) && name != spec.ReservedAnnotation {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)

	next := *req
	next.Annotations = maps.Clone(req.Annotations)
	if next.Annotations == nil {
		next.Annotations = make(limits.Set, len(names))
	}
	for _, name := range names {
		if err := applyAnnotation(&next, name, annotations[name]); err != nil {
			return err
		}
	}
	*req = next
	return nil
}

func applyAnnotation(req *limits.Request, name, value string) error {
	var problem *ValueError
	switch name {
	case ProfileAnnotation:
		req.Profile, problem = parseProfile(value)
	case OOMScopeAnnotation:
		req.OOMScope, problem = parseScope(value)
	default:
		key, ok := annotationKey(name)
		if !ok {
			return &AnnotationError{Key: name, Value: value, Text: "is not known" + suggestAnnotation(name)}
		}
		req.Annotations[key], problem = parseKey(key, value)
	}
	if problem != nil {
		return &AnnotationError{Key: name, Value: value, Text: problem.text(), Err: problem}
	}
	return nil
}

// annotationKey returns the key that an annotation sets.
func annotationKey(name string) (limits.Key, bool) {
	for _, info := range limits.Keys {
		if AnnotationName(info.Key) == name {
			return info.Key, true
		}
	}
	return "", false
}

func suggestAnnotation(name string) string {
	known := []string{"profile", "oom-scope"}
	for _, info := range limits.Keys {
		known = append(known, strings.TrimPrefix(AnnotationName(info.Key), Prefix))
	}
	if near := nearest(strings.TrimPrefix(name, Prefix), known); near != "" {
		return ": did you mean " + Prefix + near + "?"
	}
	return ": expected " + Prefix + "profile, " + Prefix + "oom-scope, or a key of [limits] with - for _, such as " + Prefix + "memory"
}
