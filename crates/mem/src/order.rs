//! Order of stores that reach a device through mappings of different types.

/// Stores before this become visible to devices before stores after it do, and none of them is kept
/// back in a write-combining buffer.
///
/// Release stores order ordinary memory among itself; a device's registers may be mapped
/// write-combining, whose stores x86 may reorder with others and hold back (Intel SDM vol. 3,
/// 12.3.1). rdma-core calls this `mmio_wc_start` before such a store and `mmio_flush_writes` after it.
#[inline]
pub fn device_barrier() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64; the instruction touches no memory.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
