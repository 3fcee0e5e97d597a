// Package doctor says what a host can enforce before a container has to find
// out: for each dimension whether its limit holds, by which mechanism, and where
// it does not, why and what to do about it. It also looks at what surrounds a
// sandbox: the low-level runtime, swap, the age of the kernel, Docker's logs.
//
// Gather has all effects and returns Facts. Examine is pure. What it says about
// a dimension comes from limits.Resolve, as for a container, and what it says
// about strict_require from the same in strict mode.
package doctor
