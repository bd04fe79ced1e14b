//! Parts of a UAR page that a program registers with CUDA: a library on a GPU registers the 8 bytes of each doorbell
//! register by itself, of which a page has four. The driver registers pages, and of memory, other than of a real NIC's
//! I/O memory, refuses one that it has already. Such a part counts as registered for as long as the first one is, which
//! stays until nobody needs it any more.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bellpush_mem::PAGE_BYTES;

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
pub const ALREADY: c_int = 712;

/// A page that parts of are registered.
#[derive(Default)]
struct Page {
    /// What the driver has registered, and the program has not given back.
    own: Vec<usize>,
    /// What rests on that.
    shared: Vec<usize>,
    /// What the driver has registered, for what rests on it alone.
    kept: Vec<usize>,
}

/// Pages by their address.
pub struct Registered(Mutex<Option<HashMap<usize, Page>>>);

impl Registered {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn pages(&self) -> MutexGuard<'_, Option<HashMap<usize, Page>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a part of a device's memory by the driver's function; what it says.
    pub fn register(&self, at: usize, driver: impl FnOnce() -> c_int) -> c_int {
        let mut pages = self.pages();
        let page = pages.get_or_insert_default().entry(at / PAGE_BYTES).or_default();
        match driver() {
            SUCCESS => page.own.push(at),
            ALREADY if !page.own.is_empty() || !page.kept.is_empty() => page.shared.push(at),
            refused => return refused,
        }
        SUCCESS
    }

    /// Gives a part back by the driver's function, which is handed what the driver is to give back.
    pub fn unregister(&self, at: usize, mut driver: impl FnMut(usize) -> c_int) -> c_int {
        let mut pages = self.pages();
        let Some(page) = pages.as_mut().and_then(|pages| pages.get_mut(&(at / PAGE_BYTES))) else {
            return driver(at);
        };
        let take = |of: &mut Vec<usize>| of.iter().position(|&it| it == at).map(|i| of.remove(i));
        if take(&mut page.shared).is_some() {
            return match page.shared.is_empty() {
                true => page.kept.drain(..).map(driver).fold(SUCCESS, |all, one| all.max(one)),
                false => SUCCESS,
            };
        }
        if !page.own.contains(&at) || page.shared.is_empty() {
            take(&mut page.own);
            return driver(at);
        }
        take(&mut page.own);
        page.kept.push(at);
        SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 0x7000;

    #[test]
    fn what_shares_a_page_rests_on_the_first_part() {
        let all = Registered::new();
        let mut given = Vec::new();
        assert_eq!(all.register(PAGE + 0x800, || SUCCESS), SUCCESS);
        assert_eq!(all.register(PAGE + 0x900, || ALREADY), SUCCESS);
        assert_eq!(all.register(PAGE + 0xa00, || ALREADY), SUCCESS);
        // The first goes first: the driver keeps it for the others.
        let mut back = |at| {
            all.unregister(at, |at| {
                given.push(at);
                SUCCESS
            })
        };
        assert_eq!([back(PAGE + 0x800), back(PAGE + 0xa00), back(PAGE + 0x900)], [SUCCESS; 3]);
        assert_eq!(given, [PAGE + 0x800]);
    }

    #[test]
    fn what_the_driver_takes_or_refuses_is_its_own_to_say() {
        let all = Registered::new();
        assert_eq!(all.register(PAGE, || ALREADY), ALREADY, "nothing of ours");
        assert_eq!(all.register(PAGE, || 1), 1);
        assert_eq!(all.unregister(PAGE, |_| 713), 713);
        // One that takes parts of a page gets them all back.
        assert_eq!(all.register(PAGE + 0x800, || SUCCESS), SUCCESS);
        assert_eq!(all.register(PAGE + 0x900, || SUCCESS), SUCCESS);
        let mut given = Vec::new();
        for at in [PAGE + 0x800, PAGE + 0x900] {
            assert_eq!(
                all.unregister(at, |at| {
                    given.push(at);
                    SUCCESS
                }),
                SUCCESS
            );
        }
        assert_eq!(given, [PAGE + 0x800, PAGE + 0x900]);
        assert_eq!(all.register(PAGE + 0x900, || ALREADY), ALREADY, "none is left to rest on");
    }
}
