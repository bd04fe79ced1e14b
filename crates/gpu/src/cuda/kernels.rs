//! Modules and their functions. A module is loaded whole.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute_enum as FunctionAttribute, CUmodule, CUresult,
};

use super::{Context, Device, DriverError, check, error_name, failed, make_current};
use crate::{GpuError, Module};

/// A module's images on one GPU. Dropping it unloads them, which waits for running kernels.
pub(crate) struct LoadedModule {
    ctx: Context,
    modules: Vec<CUmodule>,
    functions: BTreeMap<String, Entry>,
    /// Dynamic shared memory allowed to launches of each function, where it exceeds the driver's
    /// default, bytes.
    allowed: Mutex<HashMap<usize, u32>>,
}

/// An entry point, by its driver handle.
#[derive(Clone, Copy)]
struct Entry {
    raw: CUfunction,
    args_bytes: usize,
    /// Compute capability × 10 for which it was compiled; the driver translates it for later ones.
    compiled_for: i32,
}

// SAFETY: the handles are the driver's, which is thread-safe; they are set once.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

/// A kernel's entry point; it keeps its module loaded.
#[derive(Clone)]
pub(crate) struct Function {
    entry: Entry,
    module: Arc<LoadedModule>,
}

// SAFETY: as for LoadedModule.
unsafe impl Send for Function {}
// SAFETY: as for LoadedModule.
unsafe impl Sync for Function {}

/// Dynamic shared memory that a kernel has by default (CUDA C++ Programming Guide, "Shared Memory"
/// of each compute capability).
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// Compute capability × 10 from which on `griddepcontrol` waits for the preceding kernel.
const DEPENDENT_LAUNCH: i32 = 90;

impl Function {
    pub(super) fn raw(&self) -> CUfunction {
        self.entry.raw
    }

    /// Whether the kernel may be launched before the preceding one has ended. A kernel that was
    /// compiled for an earlier compute capability does not wait for the preceding one.
    pub(super) fn waits_itself(&self) -> bool {
        self.entry.compiled_for >= DEPENDENT_LAUNCH
    }

    /// Allows launches this much dynamic shared memory. The limit belongs to the function, not to a
    /// launch, and is only ever raised: another thread may be about to launch with an amount that
    /// it has just set.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<(), GpuError> {
        if bytes <= SHARED_WITHOUT_ASKING {
            return Ok(());
        }
        let mut allowed = self.module.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let most = allowed.entry(self.raw() as usize).or_insert(SHARED_WITHOUT_ASKING);
        if bytes > *most {
            let which = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded; the bytes are at most MAX_SHARED_BYTES.
            let code = unsafe { sys::cuFuncSetAttribute(self.raw(), which, bytes as i32) };
            check("cuFuncSetAttribute", code)?;
            *most = bytes;
        }
        Ok(())
    }

    pub(crate) fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        self.module.clone()
    }
}

impl Device {
    /// Loads a module; the library's own once for as long as the GPU is open. Each endpoint asks for that one, and the
    /// driver keeps some MiB of host memory of every module that is loaded and unloaded.
    pub(crate) fn load(&self, module: &Module) -> Result<Arc<LoadedModule>, GpuError> {
        if !std::ptr::eq(module.fatbins, Module::builtin().fatbins) {
            return self.load_anew(module);
        }
        let mut builtin = self.builtin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*builtin {
            return Ok(loaded.clone());
        }
        Ok(builtin.insert(self.load_anew(module)?).clone())
    }

    fn load_anew(&self, module: &Module) -> Result<Arc<LoadedModule>, GpuError> {
        if module.fatbins.is_empty() {
            return Err(GpuError::NotBuilt { reason: "the module has no CUDA image" });
        }
        let _current = self.make_current()?;
        let mut loaded = LoadedModule {
            ctx: self.ctx.clone(),
            modules: Vec::new(),
            functions: BTreeMap::new(),
            allowed: Mutex::default(),
        };
        for image in module.fatbins {
            // Aligned for the image's header, and ended by a 0 for PTX text.
            let mut words = vec![0u64; image.len() / 8 + 1];
            bytemuck::cast_slice_mut(&mut words)[..image.len()].copy_from_slice(image);
            let mut raw = std::ptr::null_mut();
            // SAFETY: the image is whole; the driver checks its content and copies it.
            match unsafe { sys::cuModuleLoadData(&raw mut raw, words.as_ptr().cast()) } {
                CUresult::CUDA_SUCCESS => loaded.modules.push(raw),
                code => {
                    let error = error_name(DriverError(code));
                    return Err(GpuError::Load { name: self.name.clone(), error });
                }
            }
            let ours = std::ptr::eq(module.fatbins, Module::builtin().fatbins);
            loaded.find_functions(raw, ours)?;
        }
        Ok(Arc::new(loaded))
    }
}

impl LoadedModule {
    /// Records every kernel of a module that takes one parameter or none, and loads it now,
    /// whatever CUDA_MODULE_LOADING says.
    fn find_functions(&mut self, module: CUmodule, ours: bool) -> Result<(), GpuError> {
        let mut count = 0;
        // SAFETY: writes one count.
        check("cuModuleGetFunctionCount", unsafe {
            sys::cuModuleGetFunctionCount(&raw mut count, module)
        })?;
        let mut raw: Vec<CUfunction> = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: writes at most `count` handles.
        check("cuModuleEnumerateFunctions", unsafe {
            sys::cuModuleEnumerateFunctions(raw.as_mut_ptr(), count, module)
        })?;
        for function in raw {
            // SAFETY: a function of the module.
            check("cuFuncLoad", unsafe { sys::cuFuncLoad(function) })?;
            let mut name = std::ptr::null();
            // SAFETY: writes one pointer to a string of the module.
            check("cuFuncGetName", unsafe { sys::cuFuncGetName(&raw mut name, function) })?;
            // SAFETY: the driver's string ends with 0 and lives as long as the module.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            // A launch hands one parameter over; the driver would read a second one from behind it.
            // Ours have one. To ask for a second that is not there counts as an error with
            // compute-sanitizer, so that only modules of others are asked.
            if !ours && parameter(function, 1)?.is_some() {
                continue;
            }
            let entry = Entry {
                raw: function,
                args_bytes: parameter(function, 0)?.unwrap_or(0),
                compiled_for: compiled_for(function)?,
            };
            self.functions.insert(name, entry);
        }
        Ok(())
    }

    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Option<(Function, usize)> {
        let &entry = self.functions.get(name)?;
        Some((Function { entry, module: self.clone() }, entry.args_bytes))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.functions.keys().cloned().collect()
    }
}

/// Bytes of a kernel's n-th parameter; `None` if it has fewer.
fn parameter(function: CUfunction, n: usize) -> Result<Option<usize>, GpuError> {
    let (mut offset, mut bytes) = (0, 0);
    // SAFETY: writes two words.
    let code = unsafe { sys::cuFuncGetParamInfo(function, n, &raw mut offset, &raw mut bytes) };
    match code {
        CUresult::CUDA_SUCCESS => Ok(Some(bytes)),
        CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
        code => Err(failed("cuFuncGetParamInfo", code)),
    }
}

fn compiled_for(function: CUfunction) -> Result<i32, GpuError> {
    let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PTX_VERSION;
    let mut version = 0;
    // SAFETY: writes one number.
    let code = unsafe { sys::cuFuncGetAttribute(&raw mut version, which, function) };
    check("cuFuncGetAttribute", code)?;
    Ok(version)
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        let Ok(_current) = make_current(&self.ctx) else { return };
        for &module in &self.modules {
            // SAFETY: loaded by `load`; every kernel that was launched kept the module.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}
