//! Which threads are the library's own: nothing else runs on them, so nobody else counts on their state.

use std::cell::Cell;

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread was made by the library, for itself.
pub(crate) fn mark() {
    OWN.set(true);
}

/// Whether the calling thread was [`mark`]ed.
#[cfg(feature = "cuda")]
pub(crate) fn is_own() -> bool {
    OWN.get()
}
