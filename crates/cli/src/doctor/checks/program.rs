//! This program and the libraries that it opens.

use bellpush::gpu::Gpu;

use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::Machine;

/// First rdma-core with ibv_reg_dmabuf_mr.
const RDMA_CORE: u32 = 34;

pub fn program(m: &Machine) -> Vec<Finding> {
    let mut all: Vec<Finding> = without_kernels(m, Gpu::why_not_built()).into_iter().collect();
    let has_card = m.mlx5().next().is_some();
    if m.live && has_card && !cfg!(feature = "mlx5") {
        all.push(
            Finding::prevents(&[Need::Nic], "this bellpush is built without the feature mlx5")
                .expected("cargo build --features mlx5")
                .cost("--nic takes soft alone")
                .fix(
                    "build it again where libibverbs-dev, librdmacm-dev and libclang are; ./x \
                 does so by itself",
                ),
        );
    }
    let Some(libraries) = m.system.libraries.known() else { return all };
    // The loader takes the libcuda of LD_LIBRARY_PATH before that of the usual folders.
    let first = m.system.cudas.iter().find(|cuda| cuda.is_first);
    let first = first.map(|cuda| format!("libcuda.so.{}", cuda.version));
    let usual = libraries.iter().filter(|(name, _)| first.is_none() || **name != "libcuda.so.1");
    let mut names: Vec<&str> =
        usual.map(|(_, full)| full.as_str()).chain(first.as_deref()).collect();
    let has_cuda = libraries.contains_key("libcuda.so.1") || !m.system.cudas.is_empty();
    if m.nvidia.version.known().is_some() && !has_cuda {
        all.push(
            Finding::warn("no libcuda.so.1 in the usual folders")
                .expected("the driver's library, of the module's version")
                .cost("CUDA finds no GPU, unless the loader knows another folder")
                .fix(
                    "install the driver's user-space part; in a container, \
                 NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                ),
        );
    }
    if has_card {
        for name in
            ["libibverbs.so.1", "libmlx5.so.1"].iter().filter(|n| !libraries.contains_key(**n))
        {
            all.push(
                Finding::warn(format!("no {name} in the usual folders"))
                    .expected("rdma-core 34 or later")
                    .cost("--nic opens no device, unless the loader knows another folder")
                    .fix("install ibverbs-providers (Debian) or libibverbs (RHEL)"),
            );
        }
        let version = libraries.get("libibverbs.so.1").and_then(|full| rdma_core(full));
        if let Some(version) = version.filter(|&v| v < RDMA_CORE) {
            all.push(
                Finding::prevents(&[Need::Nic], format!("rdma-core {version}"))
                    .expected("34 or later: ibv_reg_dmabuf_mr")
                    .cost("this program does not start with it, or opens no device")
                    .fix("update rdma-core"),
            );
        }
    }
    if all.is_empty() && !names.is_empty() {
        names.sort_unstable();
        all.push(Finding::fine(crate::doctor::read::short(&names.join(", "))));
    }
    all
}

/// Kernels for GPUs that this program lacks, on the machine on which it runs.
fn without_kernels(m: &Machine, why: Option<&str>) -> Option<Finding> {
    let why = why.filter(|_| m.live && !m.seen_gpus().is_empty())?;
    Some(
        Finding::prevents(&[Need::Gpu], format!("this bellpush has no kernels for GPUs: {why}"))
            .expected("a build with nvcc of CUDA 12.4 or later")
            .cost("kernels run on CPU threads: right, not fast")
            .fix("./x setup --cuda, which installs the compiler, and build it again")
            .source("README.md, \"Try it\""),
    )
}

/// Version of rdma-core in `libibverbs.so.1.14.39.0`; other packagings have other numbers there.
fn rdma_core(full: &str) -> Option<u32> {
    let mut parts = full.strip_prefix("libibverbs.so.1.")?.split('.');
    let (_, package) = (parts.next()?, parts.next()?.parse().ok()?);
    (parts.next().is_some() && package < 1000).then_some(package)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::packed::machine;

    /// The running machine's program is looked at, where there is a GPU that its kernels could run on.
    #[test]
    fn kernels_that_are_not_built_prevent_gpus() {
        let mut switches = machine("ib-switches");
        assert!(without_kernels(&switches, Some("no nvcc")).is_none(), "another machine's program");
        switches.live = true;
        assert!(without_kernels(&switches, None).is_none());
        let finding = without_kernels(&switches, Some("no nvcc")).unwrap();
        assert_eq!(finding.prevents, [Need::Gpu]);
        assert!(finding.found.ends_with("no kernels for GPUs: no nvcc"), "{}", finding.found);
        let mut laptop = machine("laptop");
        laptop.live = true;
        assert!(without_kernels(&laptop, Some("no nvcc")).is_none());
    }

    #[test]
    fn the_package_is_the_third_number() {
        assert_eq!(rdma_core("libibverbs.so.1.14.39.0"), Some(39));
        assert_eq!(rdma_core("libibverbs.so.1.8.28.0"), Some(28));
        assert_eq!(
            (rdma_core("libibverbs.so.1"), rdma_core("libibverbs.so.1.14.2404")),
            (None, None)
        );
    }
}
