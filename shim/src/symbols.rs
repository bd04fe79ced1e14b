//! A function in libc's table of symbols (System V ABI, chapter 5; the table's GNU hash): `dlsym` cannot be asked where
//! `dlsym` is hooked.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

/// Tags of the dynamic section.
const STRTAB: i64 = 5;
const SYMTAB: i64 = 6;
const GNU_HASH: i64 = 0x6fff_fef5;

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

struct Wanted<'a> {
    name: &'a CStr,
    found: *mut c_void,
}

/// Where libc, or its libdl (before glibc 2.34), has a function; null if it has none of that name. Any version of it.
pub fn in_libc(name: &CStr) -> *mut c_void {
    let mut wanted = Wanted { name, found: null_mut() };
    // SAFETY: the callback's argument is `wanted` for as long as it is called.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
    wanted.found
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object, and what in_libc() gave.
    let (info, wanted) = unsafe { (&*info, &mut *wanted.cast::<Wanted<'_>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's string.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    if !path.ends_with(b"/libc.so.6") && !path.ends_with(b"/libdl.so.2") {
        return 0;
    }
    // SAFETY: the object is mapped as its headers say, and its tables are as the ABI has them. The loader has made
    // their addresses absolute.
    unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
            return 0;
        };
        let base = info.dlpi_addr as usize;
        let mut entry = (base + header.p_vaddr as usize) as *const Dynamic;
        let (mut strings, mut symbols, mut hash) = (0, 0, 0);
        while (*entry).tag != 0 {
            match (*entry).tag {
                STRTAB => strings = (*entry).value,
                SYMTAB => symbols = (*entry).value,
                GNU_HASH => hash = (*entry).value,
                _ => {}
            }
            entry = entry.add(1);
        }
        if strings == 0 || symbols == 0 || hash == 0 {
            return 0;
        }
        let at = find(wanted.name, strings as *const c_char, symbols as *const _, hash as *const _);
        if at != 0 {
            wanted.found = (base + at) as *mut c_void;
        }
    }
    c_int::from(!wanted.found.is_null())
}

/// The value of a symbol that is defined; 0 without.
///
/// # Safety
/// The tables are those of one object.
unsafe fn find(
    name: &CStr,
    strings: *const c_char,
    symbols: *const libc::Elf64_Sym,
    table: *const u32,
) -> usize {
    let hash = name
        .to_bytes()
        .iter()
        .fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
    // SAFETY: four words, a filter of 64-bit words, buckets, and a chain word for each symbol from `first` on.
    unsafe {
        let (buckets, first, filter) = (*table, *table.add(1), *table.add(2));
        let bucket = table.add(4 + 2 * filter as usize);
        let chain = bucket.add(buckets as usize);
        let mut index = *bucket.add((hash % buckets.max(1)) as usize);
        while index >= first {
            let word = *chain.add((index - first) as usize);
            let symbol = &*symbols.add(index as usize);
            let is_it = word | 1 == hash | 1
                && symbol.st_shndx != 0
                && CStr::from_ptr(strings.add(symbol.st_name as usize)) == name;
            if is_it {
                return symbol.st_value as usize;
            }
            if word & 1 != 0 {
                break;
            }
            index += 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libcs_functions_are_where_it_says() {
        for name in [c"dlsym", c"dlvsym", c"malloc", c"openat64"] {
            // SAFETY: a C string.
            let known = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!known.is_null());
            assert_eq!(in_libc(name), known, "{name:?}");
        }
        assert!(in_libc(c"no_such_function").is_null());
    }
}
