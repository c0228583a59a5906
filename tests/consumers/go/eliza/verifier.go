package eliza

/*
#include <stdint.h>
#include "eliza-inference-ffi.h"

// In verifier.c: beside an export, cgo allows declarations only.
int set_verifier(EliInferenceContext* ctx, uintptr_t verifier, char** out_error);
*/
import "C"

import "runtime/cgo"

// VerifierEvent is one speculative step; the header describes the fields.
type VerifierEvent struct {
	Accepted     []int32
	RejectedFrom int
	RejectedTo   int
	Corrected    []int32
}

// SetVerifier lets verifier be called at each speculative step of all streams of the context,
// before Next returns and for streams that generate in parallel at the same time. It must not call
// this package, except Cancel. Nil ends that: when SetVerifier returns, the one before is not
// called any more.
func (c *Context) SetVerifier(verifier func(VerifierEvent)) error {
	if err := c.begin(); err != nil {
		return err
	}
	defer c.calls.RUnlock()
	return c.setVerifier(verifier)
}

func (c *Context) setVerifier(verifier func(VerifierEvent)) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	// C keeps a number that stands for the function: it may not keep a pointer into Go's memory.
	var next cgo.Handle
	if verifier != nil {
		next = cgo.NewHandle(verifier)
	}
	var message *C.char
	code := C.set_verifier(c.handle, C.uintptr_t(next), &message)
	unused := c.verifier
	if code < 0 {
		unused = next
	} else {
		c.verifier = next
	}
	if unused != 0 {
		unused.Delete()
	}
	_, err := check(code, message)
	return err
}

//export elizaVerified
func elizaVerified(event *C.EliVerifierEvent, verifier C.uintptr_t) {
	// A panic that somebody further up recovers from would skip the library's frames, which hold
	// a lock: it ends the process instead.
	defer func() {
		if reason := recover(); reason != nil {
			go panic(reason)
			select {}
		}
	}()
	cgo.Handle(verifier).Value().(func(VerifierEvent))(VerifierEvent{
		Accepted:     idsAt(event.accepted_token_ids, event.n_accepted),
		RejectedFrom: int(event.rejected_from),
		RejectedTo:   int(event.rejected_to),
		Corrected:    idsAt(event.corrected_token_ids, event.n_corrected),
	})
}
