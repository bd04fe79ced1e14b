//! Commands about memory: regions, windows, device memory, addresses, advice.

use bytemuck::{Zeroable, bytes_of};

use super::command::{Cmd, read};
use super::make::{Made, place};
use super::model::{Kind, Live};
use super::{Input, Session};
use crate::abi::ids::{UHW_OUT, attr, command, method, object};
use crate::abi::verbs::{AhAttr, AllocMw, CreateAh, RegMr, ReregMr, Sge, access};

pub fn region(input: &mut Input<'_>, s: &Session) -> Made {
    let pd = s.pick(input, &[Kind::Pd]);
    let length = u64::from(input.u8()) * 64 + 1;
    let (start, mut wrong) = place(input, s, length as usize);
    let how = input.u8();
    let mut flags = access::LOCAL_WRITE | u32::from(how & 0xf) << 1;
    let on_demand = flags & access::ON_DEMAND != 0 || how & 16 != 0;
    if on_demand {
        flags |= access::ON_DEMAND;
        // Nothing is looked at before it is accessed, but that it has an end.
        wrong = None;
    } else if start == s.device.memory.constant && length <= 4096 && how & 32 != 0 {
        (flags, wrong) = (access::REMOTE_READ, None);
    }
    let iova = if how & 64 == 0 { start } else { start & 0xfff | u64::from(how) << 12 };
    let length = if how == 0xfd { 0 } else { length };
    let wrong = wrong.or((length == 0).then_some("a region has no bytes"));
    let core = RegMr {
        response: 0,
        start,
        length,
        hca_va: iova,
        pd_handle: pd.handle as u32,
        access_flags: flags,
    };
    let cmd = Cmd::written(command::REG_MR, bytes_of(&core).to_vec());
    // The addresses are as they are.
    let cmd = cmd.fixed(32).out(attr::CORE_OUT, 12).wrong_if(pd.wrong).wrong_if(wrong);
    let new = Live { on_demand, ..Live::new(Kind::Mr).uses(&[pd.handle]) };
    Made::makes(cmd, new, move |new, _, done| {
        let [lkey, rkey] = [1, 2].map(|n| done.word(attr::CORE_OUT, n).into());
        new.region = [iova, length, lkey, rkey];
        new.number = lkey as u32;
    })
}

pub fn again(input: &mut Input<'_>, s: &Session) -> Made {
    let (mr, pd) = (s.pick(input, &[Kind::Mr]), s.pick(input, &[Kind::Pd]));
    let flags = u32::from(input.u8() % 10);
    let length = u64::from(input.u8()) + 1;
    let (start, wrong) = place(input, s, length as usize);
    let core = ReregMr {
        response: 0,
        mr_handle: mr.handle as u32,
        flags,
        start,
        length,
        hca_va: start,
        pd_handle: pd.handle as u32,
        access_flags: access::LOCAL_WRITE,
    };
    let bad = flags == 0 || flags > 7;
    let live = s.live.iter().find(|live| live.handle == mr.handle);
    let on_demand = live.is_some_and(|live| live.on_demand);
    let cmd = Cmd::written(command::REREG_MR, bytes_of(&core).to_vec())
        .fixed(48)
        .out(attr::CORE_OUT, 8)
        .wrong_if(mr.wrong)
        .wrong_if(pd.wrong.filter(|_| flags & 2 != 0))
        .wrong_if(wrong.filter(|_| flags & 1 != 0 && (flags & 4 != 0 || !on_demand)))
        .wrong_if(bad.then_some("it changes nothing that there is"));
    let pd = pd.handle;
    Made::then(cmd, move |s, _, done| {
        let Some(live) = s.live.iter_mut().find(|live| live.handle == mr.handle) else { return };
        if flags & 1 != 0 {
            (live.region[0], live.region[1]) = (start, length);
        }
        if flags & 2 != 0 {
            live.uses = vec![pd];
        }
        live.on_demand &= flags & 4 == 0;
        for n in 0..2 {
            live.region[2 + n] = done.word(attr::CORE_OUT, n).into();
        }
        live.number = live.region[2] as u32;
    })
}

pub fn window(input: &mut Input<'_>, s: &Session) -> Made {
    let (pd, kind) = (s.pick(input, &[Kind::Pd]), input.u8() % 4);
    let core =
        AllocMw { response: 0, pd_handle: pd.handle as u32, mw_type: kind, reserved: [0; 3] };
    let cmd = Cmd::written(command::ALLOC_MW, bytes_of(&core).to_vec())
        .out(attr::CORE_OUT, 8)
        .wrong_if(pd.wrong)
        .wrong_if((!(1..=2).contains(&kind)).then_some("a window of no type that there is"));
    let new = Live::new(Kind::Mw).uses(&[pd.handle]);
    Made::makes(cmd, new, |new, _, done| new.number = done.word(attr::CORE_OUT, 1))
}

pub fn address(input: &mut Input<'_>, s: &Session) -> Made {
    let (pd, how) = (s.pick(input, &[Kind::Pd]), input.u8());
    let mut dgid = [0; 16];
    (dgid[10], dgid[11], dgid[12], dgid[15]) = (0xff, 0xff, 127, how);
    let attr = AhAttr {
        dgid,
        is_global: how & 1,
        sgid_index: how >> 6 & 1,
        port_num: 1 + (how >> 7),
        ..AhAttr::zeroed()
    };
    let pd_handle = pd.handle as u32;
    let core = CreateAh { response: 0, user_handle: 0, pd_handle, reserved: 0, attr };
    let cmd = Cmd::written(command::CREATE_AH, bytes_of(&core).to_vec())
        .out(attr::CORE_OUT, 4)
        .out(UHW_OUT, 16)
        .wrong_if(pd.wrong)
        .wrong_if((how & 1 == 0 || how >> 6 > 0).then_some("no GRH, or of no port or GID"));
    Made::makes(cmd, Live::new(Kind::Ah).uses(&[pd.handle]), |_, _, _| {})
}

pub fn device_memory(input: &mut Input<'_>, _: &Session) -> Made {
    let bytes = [u64::from(input.u8()) * 1024, u64::MAX, 0][usize::from(input.u8() / 125)];
    let cmd = Cmd::new(object::DM, method::DM_ALLOC)
        .handle(attr::ALLOC_DM_HANDLE)
        .value(attr::ALLOC_DM_LENGTH, bytes)
        .value(attr::ALLOC_DM_ALIGNMENT, u64::from(input.u8() >> 5))
        .out(attr::ALLOC_DM_RESP_START_OFFSET, 8)
        .out(attr::ALLOC_DM_RESP_PAGE_INDEX, 2)
        .wrong_if((bytes == 0 || bytes == u64::MAX).then_some("as much as there cannot be"));
    Made::makes(cmd, Live::new(Kind::Dm), move |new, cmd, done| {
        let bytes = cmd.number(attr::ALLOC_DM_LENGTH).unwrap_or(bytes);
        let index: Option<u16> = read(done.answer(attr::ALLOC_DM_RESP_PAGE_INDEX));
        let first = u32::from(index.unwrap_or(0));
        new.pages = (first, first + bytes.div_ceil(4096) as u32);
        new.region[1] = bytes;
    })
}

pub fn device_region(input: &mut Input<'_>, s: &Session) -> Made {
    let (pd, dm) = (s.pick(input, &[Kind::Pd]), s.pick(input, &[Kind::Dm]));
    let has = s.live.iter().find(|live| live.handle == dm.handle).map_or(0, |dm| dm.region[1]);
    let (offset, length) = (u64::from(input.u8()) * 64, u64::from(input.u8()) * 64);
    let end = offset.checked_add(length);
    let cmd = Cmd::new(object::MR, method::DM_MR_REG)
        .handle(attr::REG_DM_MR_HANDLE)
        .value(attr::REG_DM_MR_OFFSET, offset)
        .value(attr::REG_DM_MR_LENGTH, length)
        .value(attr::REG_DM_MR_PD_HANDLE, pd.handle)
        .value(attr::REG_DM_MR_DM_HANDLE, dm.handle)
        .value(attr::REG_DM_MR_ACCESS_FLAGS, (access::ZERO_BASED | access::LOCAL_WRITE).into())
        .out(attr::REG_DM_MR_RESP_LKEY, 4)
        .out(attr::REG_DM_MR_RESP_RKEY, 4)
        .wrong_if(pd.wrong.or(dm.wrong))
        .wrong_if(end.is_none_or(|end| end > has).then_some("past the device memory"));
    let new = Live::new(Kind::Mr).uses(&[pd.handle, dm.handle]);
    Made::makes(cmd, new, move |new, _, done| {
        let key = |id| u64::from(done.word(id, 0));
        let keys = [attr::REG_DM_MR_RESP_LKEY, attr::REG_DM_MR_RESP_RKEY].map(key);
        new.region = [0, length, keys[0], keys[1]];
        new.number = keys[0] as u32;
    })
}

pub fn advice(input: &mut Input<'_>, s: &Session) -> Made {
    let (pd, mr) = (s.pick(input, &[Kind::Pd]), s.pick(input, &[Kind::Mr]));
    let addr = s.live.iter().find(|live| live.handle == mr.handle).map_or(0, |mr| mr.region[0]);
    let (how, length) = (input.u8(), u32::from(input.u8()) << 4);
    let one = Sge { addr: addr + u64::from(how), length, lkey: mr.number };
    let list = bytes_of(&one).repeat(usize::from(how % 4));
    let cmd = Cmd::new(object::MR, method::ADVISE_MR)
        .value(attr::ADVISE_MR_PD_HANDLE, pd.handle)
        .value(attr::ADVISE_MR_ADVICE, u64::from(how >> 6))
        .value(attr::ADVISE_MR_FLAGS, u64::from(how >> 4 & 3))
        .input(attr::ADVISE_MR_SGE_LIST, list)
        .wrong_if(pd.wrong)
        .wrong_if((how >> 6 == 3 || how >> 5 & 1 == 1).then_some("an advice that there is not"))
        .wrong_if((how % 4 == 0).then_some("an advice of nothing"))
        .wrong_if(mr.wrong.map(|_| "a key that there is not"));
    Made::of(cmd)
}
