use super::*;

fn attr(sq_blocks: u32, rq_wqes: u32, send_cqes: u32, recv_cqes: u32) -> QpAttr {
    QpAttr {
        sq_blocks,
        rq_wqes,
        rq_sges: 4,
        send_cqes,
        recv_cqes,
        rnr_retry: 7,
        ack_timeout: 14,
        inband: None,
        blueflame: false,
    }
}

/// What libmlx5 takes for a queue pair, in its order, from machines with pages of every size.
#[test]
fn queue_memory_is_enough_whatever_a_page_is() {
    for page in [4096, 16384, 65536] {
        for attr in [attr(64, 16, 128, 32), attr(1024, 0, 2048, 0), attr(32768, 512, 65536, 1024)] {
            let bytes = queue_bytes_in(&attr, page);
            // A page more, since the test's memory begins at one of this machine's pages.
            let memory = HostMem::alloc(bytes + page).unwrap();
            let head = memory.addr().next_multiple_of(page as u64) - memory.addr();
            let pool = Pool::of_pages(View::new(&memory, head as usize, bytes).unwrap(), page);
            let take = |bytes: usize, align| {
                assert_ne!(pool.take(bytes, align), 0, "{bytes} bytes with pages of {page}");
            };
            for cqes in [attr.send_cqes, attr.recv_cqes].into_iter().filter(|&cqes| cqes > 0) {
                take((cqes as usize * CQE_BYTES).next_multiple_of(page), page);
                take(8, 8);
            }
            let rings = attr.sq_blocks * 64 + attr.rq_wqes * attr.rq_sges * 16;
            let rings = (rings as usize).next_multiple_of(page);
            take(rings, (rings.next_power_of_two() / 64).max(page));
            take(8, 8);
        }
    }
}

#[test]
fn a_register_is_found_in_pages_of_every_size() {
    let base = 0x7f00_0001_0000;
    assert_eq!(register_part(base + 0x800, 4096), Some((base, 0..4096)));
    assert_eq!(register_part(base + 0xa00, 4096), Some((base, 0x200..4096)));
    // The sixth UAR page of a system page of 64 KiB.
    let part = (0x5000, 0x6000);
    assert_eq!(register_part(base + 0x5800, 65536), Some((base, part.0..part.1)));
    assert_eq!(register_part(base + 0x5a00, 65536), Some((base, part.0 + 0x200..part.1)));
    for wrong in [0, 0x7f8, 0x804] {
        assert_eq!(register_part(base + wrong, 4096), None, "{wrong:#x}");
    }
}

#[test]
fn paths_carry_the_marks_of_the_device_or_their_own() {
    let ip = |text: &str| NicAddress::Ip(text.parse().unwrap());
    let marks = Marks { traffic_class: 106, service_level: 3 };
    let made = |to: &AddressVector| path(ip("10.0.0.1"), (2, 5), marks, to).unwrap();
    let av = made(&AddressVector::to(ip("10.0.0.2")));
    assert_eq!((av.is_global, av.port_num, av.sl), (1, 2, 3));
    let route = av.grh;
    assert_eq!((route.traffic_class, route.hop_limit, route.sgid_index), (106, 64, 5));
    let to = AddressVector { traffic_class: 8, hop_limit: 9, flow_label: 77, nic: ip("10.0.0.2") };
    let route = made(&to).grh;
    assert_eq!((route.traffic_class, route.hop_limit, route.flow_label), (8, 9, 77));
    // On a subnet of InfiniBand a path has no header that would carry a traffic class.
    let port = |lid| NicAddress::Lid { lid, gid: [7; 16] };
    let av = path(port(1), (1, 0), marks, &AddressVector::to(port(4))).unwrap();
    assert_eq!((av.is_global, av.dlid, av.sl), (0, 4, 3));
}

#[test]
fn without_atomics_no_peer_is_allowed_any() {
    let flag = rdma_sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    assert_ne!(access_flags(Access::ALL, true) & flag, 0);
    assert_eq!(access_flags(Access::ALL, false), access_flags(Access::ALL, true) & !flag);
}
