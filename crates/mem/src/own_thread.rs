//! Which threads are the library's own: nothing else runs on them, so nobody else counts on their state.

use std::cell::Cell;

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread was made by the library, for itself.
pub fn mark() {
    OWN.set(true);
}

/// Whether the calling thread was [`mark`]ed.
pub fn is_own() -> bool {
    OWN.get()
}
