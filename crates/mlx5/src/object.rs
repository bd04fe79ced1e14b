//! Objects of a context, destroyed in the order in which they depend on each other.

use std::any::Any;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use libc::c_int;

use super::device::Device;
use super::error::Mlx5Error;

/// Destroys an object of type `T`; 0 or an error number comes back.
pub(super) type Destroy<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// An object of libibverbs and everything that it uses, which outlives it.
///
/// Where destruction fails, the NIC may still use what the object was made of: all of that is kept
/// until the program ends.
pub(super) struct Object<T> {
    raw: NonNull<T>,
    device: Arc<Device>,
    how: Destroy<T>,
    call: &'static str,
    uses: ManuallyDrop<Box<dyn Any + Send + Sync>>,
    destroyed: bool,
}

// SAFETY: libibverbs and its providers are thread-safe; the pointer is used for calls only.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Takes an object that a call gave; null is the error in `errno`.
    ///
    /// # Safety
    /// `raw` is null, or a live object of the device's context that nothing else destroys, which
    /// `how` destroys and `uses` keeps usable.
    pub unsafe fn take(
        device: &Arc<Device>,
        raw: *mut T,
        made_by: &'static str,
        (how, call): (Destroy<T>, &'static str),
        uses: impl Any + Send + Sync,
    ) -> Result<Self, Mlx5Error> {
        let error = Mlx5Error::last(&device.name, made_by);
        let raw = NonNull::new(raw).ok_or(error)?;
        let (device, uses) = (device.clone(), ManuallyDrop::new(Box::new(uses) as Box<_>));
        Ok(Self { raw, device, how, call, uses, destroyed: false })
    }

    pub fn raw(&self) -> NonNull<T> {
        self.raw
    }

    /// Destroys the object now.
    ///
    /// # Errors
    /// [`Mlx5Error::Destroy`]; what the object uses stays then.
    pub fn destroy(mut self) -> Result<(), Mlx5Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Mlx5Error> {
        if std::mem::replace(&mut self.destroyed, true) {
            return Ok(());
        }
        // SAFETY: as `take` was promised; `destroyed` says that this is the first time.
        let code = unsafe { (self.how)(self.raw.as_ptr()) };
        if code != 0 {
            // Some verbs return -1 and set errno, others return the number.
            let source = match code {
                -1 => io::Error::last_os_error(),
                code => io::Error::from_raw_os_error(code.abs()),
            };
            let name = self.device.name.clone();
            return Err(Mlx5Error::Destroy { name, call: self.call, source });
        }
        // SAFETY: dropped once, as above; the object that used it is gone.
        unsafe { ManuallyDrop::drop(&mut self.uses) };
        Ok(())
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let _ = self.end(); // what it used is kept; there is nobody to tell
    }
}
