use crate::sim::{NicModel, Params, PathModel, TestBedSpec, predict};
use crate::topology::{Knob, Topology, builtin};

/// A translated NIC waits where its pages do not fit, an untranslated one does not, and nothing
/// changes where they fit.
#[test]
fn misses_cost_where_an_iommu_translates() {
    let off = builtin("same-root-complex").unwrap();
    let on = off.with(Knob::Iommu, 1.0).unwrap();
    let (gpu, nic) = (off.find("gpu0").unwrap(), off.find("nic0").unwrap());
    let few = Params::default();
    let many = Params { iommu_pages: 4096.0, ..few.clone() };
    let ns = |topology: &Topology, params: &Params, path, bytes| {
        let spec = TestBedSpec { topology, gpu, nic, params, seed: 1 };
        predict(spec, path, bytes, 8).unwrap().unwrap()
    };
    for &path in NicModel::Software.paths() {
        let at = |topology: &Topology, params: &Params| ns(topology, params, path, 64);
        assert_eq!(at(&on, &few), at(&off, &few), "{path:?}: pages fit");
        assert_eq!(at(&off, &many), at(&off, &few), "{path:?}: nothing translates");
        let slow = at(&on, &many).completed_ns - at(&off, &few).completed_ns;
        assert!(slow > 250.0, "{path:?}: {slow}");
    }
    // Every page of 4 KiB is one walk: 256 KiB of reads wait for 64 of them, six at once.
    let time = |pages| {
        let params = Params { iommu_pages: pages, ..few.clone() };
        ns(&on, &params, PathModel::Pull, 256 << 10).completed_ns
    };
    assert!(time(65536.0) > 1.03 * time(64.0), "{} {}", time(65536.0), time(64.0));
}
