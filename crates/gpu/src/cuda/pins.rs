//! State of the ranges of host memory: registered, being registered, or being unregistered.
//!
//! The driver's calls wait for running kernels, and a kernel may wait for a copy that looks up a
//! range here. No lock is therefore held during such a call: the range is marked, the call is made
//! without the lock, and its result replaces the mark.
//! replaced by what came of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// A registration with its range.
pub(super) trait Range {
    /// First address.
    fn host(&self) -> u64;
    fn bytes(&self) -> usize;
}

/// Registrations by first address.
pub(super) struct Pins<P> {
    entries: Mutex<BTreeMap<u64, Entry<P>>>,
    /// Signals the removal of a mark.
    changed: Condvar,
}

enum Entry<P> {
    /// A driver call about the range is under way.
    Busy,
    Pinned(Weak<P>),
    /// Registered for good because of a copy that did not end; later mappings at the address are
    /// other memory.
    Lost,
}

impl<P: Range> Pins<P> {
    pub const fn new() -> Self {
        Self { entries: Mutex::new(BTreeMap::new()), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Entry<P>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, host: u64, entry: Option<Entry<P>>) {
        let mut entries = self.lock();
        match entry {
            Some(entry) => entries.insert(host, entry),
            None => entries.remove(&host),
        };
        drop(entries);
        self.changed.notify_all();
    }

    /// The registration that begins at `host`, or a new one from `register`. `None` for a lost one.
    pub fn take<E>(
        &self,
        host: u64,
        register: impl FnOnce() -> Result<P, E>,
    ) -> Result<Option<Arc<P>>, E> {
        let mut entries = self.lock();
        loop {
            match entries.get(&host) {
                None => break,
                Some(Entry::Lost) => return Ok(None),
                // `None`: its last owner is about to unregister it.
                Some(Entry::Pinned(pin)) => {
                    if let Some(pin) = pin.upgrade() {
                        drop(entries); // this may be the last reference by now, and its drop locks
                        return Ok(Some(pin));
                    }
                }
                Some(Entry::Busy) => {}
            }
            entries = self.changed.wait(entries).unwrap_or_else(PoisonError::into_inner);
        }
        entries.insert(host, Entry::Busy);
        drop(entries);
        let made = register().map(Arc::new);
        self.set(host, made.as_ref().ok().map(|pin| Entry::Pinned(Arc::downgrade(pin))));
        made.map(Some)
    }

    /// The completed registration that covers a range.
    pub fn covering(&self, host: u64, bytes: usize) -> Option<Arc<P>> {
        let entries = self.lock();
        let Entry::Pinned(pin) = entries.range(..=host).next_back()?.1 else { return None };
        let pin = pin.upgrade();
        drop(entries); // as in `take`
        let pin = pin?;
        (host + bytes as u64 <= pin.host() + pin.bytes() as u64).then_some(pin)
    }

    /// Unregisters a range; called by the drop of its registration.
    pub fn give_back(&self, host: u64, unregister: impl FnOnce()) {
        self.set(host, Some(Entry::Busy));
        unregister();
        self.set(host, None);
    }

    /// Keeps a registration for good: later mappings at its addresses must not share it.
    pub fn lose(&self, pin: Arc<P>) {
        self.set(pin.host(), Some(Entry::Lost));
        std::mem::forget(pin);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    struct Fake(u64);

    impl Range for Fake {
        fn host(&self) -> u64 {
            self.0
        }
        fn bytes(&self) -> usize {
            4096
        }
    }

    fn make(host: u64) -> Result<Fake, ()> {
        Ok(Fake(host))
    }

    /// The driver's call waits for a kernel, and the kernel for a copy that looks for a pin.
    #[test]
    fn nobody_waits_for_the_drivers_calls_who_only_looks() {
        let pins = Arc::new(Pins::new());
        let kept = pins.take(0x1000, || make(0x1000)).unwrap().unwrap();
        let look = |at| {
            let ((tell, told), pins) = (mpsc::channel(), pins.clone());
            std::thread::spawn(move || tell.send(pins.covering(at, 64).is_some()));
            told.recv_timeout(LIMIT)
        };
        pins.take(0x9000, || {
            assert_eq!(look(0x1040), Ok(true), "while another is registered");
            assert_eq!(look(0x9000), Ok(false), "one that is not registered yet");
            make(0x9000)
        })
        .unwrap()
        .unwrap();
        pins.give_back(0x9000, || assert_eq!(look(0x1040), Ok(true), "while one is unregistered"));
        assert_eq!(look(0x9000), Ok(false));
        drop(kept);
    }

    #[test]
    fn a_range_is_registered_once_and_again_after_it_was_given_back() {
        let pins = Pins::new();
        let first = pins.take(0x1000, || make(0x1000)).unwrap().unwrap();
        let again = pins.take::<()>(0x1000, || panic!("it is registered")).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(pins.take(0x5000, || Err::<Fake, _>(7)).is_err());
        assert!(pins.take(0x5000, || make(0x5000)).unwrap().is_some(), "a refusal leaves no mark");
        // Who comes while the last owner unregisters waits for that, and registers anew.
        drop(again);
        std::thread::scope(|scope| {
            let (begun, go) = mpsc::channel();
            let pins = &pins;
            let taker = scope.spawn(move || {
                go.recv_timeout(LIMIT).unwrap();
                pins.take(0x1000, || make(0x1000)).unwrap().unwrap()
            });
            drop(first);
            pins.give_back(0x1000, || begun.send(()).unwrap());
            assert_eq!(taker.join().unwrap().host(), 0x1000);
        });
    }

    #[test]
    fn what_a_copy_may_still_use_is_not_shared_by_later_memory() {
        let pins = Pins::new();
        let pin = pins.take(0x1000, || make(0x1000)).unwrap().unwrap();
        pins.lose(pin);
        assert!(pins.covering(0x1000, 64).is_none());
        assert!(pins.take::<()>(0x1000, || panic!("still registered")).unwrap().is_none());
    }
}
