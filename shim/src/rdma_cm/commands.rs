//! The commands: copied out of the program's memory, then checked, then carried out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, MutexGuard};

use bellpush_cm::{Address, IdError, Opt, Parameters, Space};
use bellpush_soft_nic::link::interface_name;
use bellpush_wire::cm::reason;
use bytemuck::{Pod, Zeroable, bytes_of, bytes_of_mut};

use super::abi::{
    AF_IB, Accept, Bind, BindIp, ConnParam, Connect, CreateId, DestroyId, Disconnect, Ece,
    GetEvent, Header, InitQpAttr, Listen, MigrateId, Notify, Number, Query, Reject, ResolveAddr,
    ResolveIp, ResolveRoute, SOCKADDR_IB_BYTES, SetOption, command, option, query, space,
};
use super::claims::Claimed;
use super::{CmFile, RdmaCm, State, answers};
use crate::abi::verbs::event;
use crate::device::Device;
use crate::error::Refusal;
use crate::files::Kind;
use crate::names;
use crate::process::Process;
use crate::request::{read_user, write_user};

/// Longest command: whatever is longer is none.
pub const MAX_COMMAND_BYTES: usize = 1024;
/// Bytes of an answer that programs built for older kernels have no room for.
const NEWER_BYTES: usize = 8;
/// The same of an event: its reserved word as well.
const NEWER_EVENT_BYTES: usize = 12;

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It waits for an event.
    Wait,
}

/// A command that was refused, by what people know it by.
pub struct Named(pub &'static str, pub Refusal);

/// A command on its way.
struct Call<'a> {
    cm: &'a RdmaCm,
    process: &'static Process,
    file: &'a CmFile,
    /// Its struct.
    input: Vec<u8>,
    /// Bytes of its answer.
    room: usize,
}

impl RdmaCm {
    /// Carries a command out.
    pub fn command(
        &self,
        process: &'static Process,
        file: &CmFile,
        fd: RawFd,
        (addr, bytes): (u64, usize),
    ) -> Result<Outcome, Named> {
        let (header, input) =
            read(addr, bytes).map_err(|refusal| Named("a command of librdmacm's", refusal))?;
        let call = Call { cm: self, process, file, input, room: header.output.into() };
        call.carry_out(header.command, fd)
            .map_err(|refusal| Named(names::of_rdma_cm(header.command), refusal))
    }
}

/// Copies a command out.
fn read(addr: u64, bytes: usize) -> Result<(Header, Vec<u8>), Refusal> {
    let length = |value: usize| {
        let must = "those of a command";
        Refusal::Value { what: "number of bytes", value: value as u64, must }
    };
    let mut header = Header::zeroed();
    if !(size_of::<Header>()..=MAX_COMMAND_BYTES).contains(&bytes) {
        return Err(length(bytes));
    }
    read_user(addr, bytes_of_mut(&mut header))?;
    let input = usize::from(header.input);
    if input + size_of::<Header>() > bytes {
        return Err(length(input));
    }
    let mut copy = vec![0; input];
    read_user(addr + size_of::<Header>() as u64, &mut copy)?;
    Ok((header, copy))
}

impl<'a> Call<'a> {
    fn carry_out(&self, command: u32, fd: RawFd) -> Result<Outcome, Refusal> {
        match command {
            command::CREATE_ID => self.create_id(),
            command::DESTROY_ID => self.destroy_id(),
            command::BIND_IP => self.bind_ip(),
            command::BIND => self.bind(),
            command::RESOLVE_IP => self.resolve_ip(),
            command::RESOLVE_ADDR => self.resolve_addr(),
            command::RESOLVE_ROUTE => self.resolve_route(),
            command::QUERY_ROUTE => self.query_route(),
            command::QUERY => self.query(),
            command::CONNECT => self.connect(),
            command::LISTEN => self.listen(),
            command::ACCEPT => self.accept(),
            command::REJECT => self.reject(),
            command::DISCONNECT => self.disconnect(),
            command::INIT_QP_ATTR => self.init_qp_attr(),
            command::GET_EVENT => return self.get_event(fd),
            command::SET_OPTION => self.set_option(),
            command::NOTIFY => self.notify(),
            command::MIGRATE_ID => self.migrate_id(),
            command::JOIN_IP_MCAST | command::JOIN_MCAST | command::LEAVE_MCAST => {
                Err(Refusal::Unsupported("multicast"))
            }
            command::GET_OPTION => Err(Refusal::NoSystemCall("UCMA_CMD_GET_OPTION")),
            other => Err(Refusal::Value {
                what: "command",
                value: other.into(),
                must: "one of rdma_cm's",
            }),
        }
        .map(|()| Outcome::Done)
    }

    fn input<T: Pod>(&self) -> Result<T, Refusal> {
        self.input_from(size_of::<T>())
    }

    /// The command's struct, of programs that may say less: fields behind `least` bytes are 0 then.
    fn input_from<T: Pod>(&self, least: usize) -> Result<T, Refusal> {
        let mut input = T::zeroed();
        let known = self.input.len().min(size_of::<T>());
        if known < least {
            let (value, must) = (known as u64, "those of the command's struct");
            return Err(Refusal::Value { what: "number of bytes", value, must });
        }
        bytes_of_mut(&mut input)[..known].copy_from_slice(&self.input[..known]);
        Ok(input)
    }

    /// Sees that there is room for an answer before anything is done: so that what has been done is
    /// always told.
    fn answer_room(&self, addr: u64, least: usize) -> Result<(), Refusal> {
        if self.room < least {
            return Err(Refusal::NoAnswerRoom { have: self.room, need: least });
        }
        // SAFETY: the program named the place for its answer.
        unsafe { write_user(addr, &vec![0; least]) }
    }

    /// Answers, as far as there is room.
    fn answer(&self, addr: u64, bytes: &[u8]) -> Result<(), Refusal> {
        // SAFETY: the program named the place for its answer.
        unsafe { write_user(addr, &bytes[..bytes.len().min(self.room)]) }
    }

    fn state(&self) -> MutexGuard<'a, State> {
        self.cm.state()
    }

    /// Does something and ends the command, whatever came of it.
    fn with<T>(&self, body: impl FnOnce(&mut State) -> Result<T, IdError>) -> Result<T, Refusal> {
        let mut state = self.state();
        let done = body(&mut state);
        self.cm.finish(state);
        Ok(done?)
    }

    fn create_id(&self) -> Result<(), Refusal> {
        let input: CreateId = self.input()?;
        self.answer_room(input.response, size_of::<Number>())?;
        let space = match input.space {
            space::TCP => Space::Tcp,
            space::UDP => Space::Udp,
            space::IB => Space::Ib,
            space::IPOIB => {
                return Err(Refusal::Unsupported("the port space of IP over InfiniBand"));
            }
            other => {
                return Err(Refusal::Value {
                    what: "port space",
                    value: other.into(),
                    must: "a known one",
                });
            }
        };
        let value = self.with(|state| state.ids.create(self.file.channel, input.uid, space))?;
        self.answer(input.response, bytes_of(&Number { value }))
    }

    fn destroy_id(&self) -> Result<(), Refusal> {
        let input: DestroyId = self.input()?;
        self.answer_room(input.response, size_of::<Number>())?;
        let now = self.cm.now_ns();
        let value = self.with(|state| state.ids.destroy(now, self.file.channel, input.id))?;
        self.answer(input.response, bytes_of(&Number { value }))
    }

    fn bind_to(&self, id: u32, to: Address) -> Result<(), Refusal> {
        let mut state = self.state();
        if let Address::Ip(at) = to {
            let ip = at.ip().to_canonical();
            self.cm.attach(self.process, &mut state, Some(ip).filter(|ip| !ip.is_unspecified()))?;
        }
        let done = state.ids.bind(self.file.channel, id, to);
        self.cm.finish(state);
        done.map_err(not_bound)
    }

    fn bind_ip(&self) -> Result<(), Refusal> {
        let input: BindIp = self.input()?;
        self.bind_to(input.id, ip_address(&input.addr)?)
    }

    fn bind(&self) -> Result<(), Refusal> {
        let input: Bind = self.input()?;
        self.bind_to(input.id, sized_address(&input.addr, input.size, input.reserved.into())?)
    }

    fn resolve(&self, id: u32, from: Option<Address>, to: Address) -> Result<(), Refusal> {
        let (Address::Ip(to), None | Some(Address::Ip(_))) = (to, from) else {
            return Err(Refusal::Unsupported("an address of InfiniBand's on Ethernet"));
        };
        let from = from.and_then(|from| match from {
            Address::Ip(from) => Some(from),
            Address::IbAny => None,
        });
        let mut state = self.state();
        let own = from.map(|from| from.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        self.cm.attach(self.process, &mut state, own)?;
        let done = state.ids.resolve_address(self.file.channel, id, from, to);
        self.cm.finish(state);
        done.map_err(not_bound)
    }

    fn resolve_ip(&self) -> Result<(), Refusal> {
        let input: ResolveIp = self.input()?;
        let has_source = input.source[..2] != [0, 0];
        let source = has_source.then(|| ip_address(&input.source)).transpose()?;
        self.resolve(input.id, source, ip_address(&input.destination)?)
    }

    fn resolve_addr(&self) -> Result<(), Refusal> {
        let input: ResolveAddr = self.input()?;
        let (sizes, reserved) = ((input.source_size, input.destination_size), input.reserved);
        let source = match sizes.0 {
            0 => None,
            size => Some(sized_address(&input.source, size, reserved)?),
        };
        self.resolve(input.id, source, sized_address(&input.destination, sizes.1, reserved)?)
    }

    fn resolve_route(&self) -> Result<(), Refusal> {
        let input: ResolveRoute = self.input()?;
        self.with(|state| state.ids.resolve_route(self.file.channel, input.id))
    }

    fn query_route(&self) -> Result<(), Refusal> {
        let input: Query = self.input_from(size_of::<Query>() - 4)?;
        let facts = self.state().ids.facts(self.file.channel, input.id)?;
        let answer = answers::route(&facts);
        self.answer_room(input.response, size_of_val(&answer) - NEWER_BYTES)?;
        self.answer(input.response, bytes_of(&answer))
    }

    fn query(&self) -> Result<(), Refusal> {
        let input: Query = self.input()?;
        let facts = self.state().ids.facts(self.file.channel, input.id)?;
        match input.option {
            query::ADDR | query::GID => {
                let answer = answers::addresses(&facts, input.option == query::GID);
                self.answer_room(input.response, size_of_val(&answer) - NEWER_BYTES)?;
                self.answer(input.response, bytes_of(&answer))
            }
            query::PATH => {
                let answer = answers::path(&facts);
                self.answer_room(input.response, 8)?;
                self.answer(input.response, bytes_of(&answer))
            }
            _ => Err(Refusal::NoSystemCall("a query of that kind")),
        }
    }

    fn connect(&self) -> Result<(), Refusal> {
        let input: Connect = self.input_from(size_of::<Connect>() - size_of::<Ece>())?;
        if input.param.valid == 0 {
            return Err(IdError::Value("a connection is asked for without parameters").into());
        }
        let (now, with) = (self.cm.now_ns(), parameters(&input.param));
        self.with(|state| state.ids.connect(now, self.file.channel, input.id, &with))
    }

    fn listen(&self) -> Result<(), Refusal> {
        let input: Listen = self.input()?;
        let mut state = self.state();
        self.cm.attach(self.process, &mut state, None)?;
        let done = self.listen_claimed(&mut state, &input);
        self.cm.finish(state);
        Ok(done?)
    }

    /// Has an identifier listen at a port that no other process at its address listens at.
    fn listen_claimed(&self, state: &mut State, input: &Listen) -> Result<(), IdError> {
        // Which port it is must be known before it is claimed.
        state.ids.bind_if_idle(self.file.channel, input.id)?;
        let mut claimed = Vec::new();
        let done = self
            .claim(state, input.id, &mut claimed)
            .and_then(|()| state.ids.listen(self.file.channel, input.id, input.backlog));
        if done.is_err() {
            claimed.into_iter().for_each(|(device, service)| state.claims.leave(device, service));
        }
        done
    }

    /// Sees that no other process at a device's address listens at an identifier's port. What was
    /// claimed for it is also told where it fails.
    fn claim(
        &self,
        state: &mut State,
        id: u32,
        claimed: &mut Vec<(usize, u64)>,
    ) -> Result<(), IdError> {
        let facts = state.ids.facts(self.file.channel, id)?;
        let (Some(at), Some(space)) = (facts.source, facts.space.ports()) else { return Ok(()) };
        let (service, State { devices, claims, .. }) = (space.service(at.port()), state);
        let is_there = |device: &&Arc<Device>| {
            let shares = device.nic.share().is_some();
            shares && (at.ip().is_unspecified() || at.ip() == device.address)
        };
        for device in devices.iter().flatten().filter(is_there) {
            match claims.take(device.index, device.address, service) {
                Claimed::Now => claimed.push((device.index, service)),
                Claimed::Before | Claimed::Not => {}
                Claimed::ByAnother => return Err(IdError::InUse),
            }
        }
        Ok(())
    }

    fn accept(&self) -> Result<(), Refusal> {
        let input: Accept = self.input_from(size_of::<Accept>() - size_of::<Ece>())?;
        let (now, with) = (self.cm.now_ns(), parameters(&input.param));
        let with = (input.param.valid != 0).then_some((input.uid, &with));
        self.with(|state| state.ids.accept(now, self.file.channel, input.id, with))
    }

    fn reject(&self) -> Result<(), Refusal> {
        /// `IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`: what librdmacm says besides.
        const VENDOR_OPTION: u8 = 35;
        let input: Reject = self.input()?;
        let why = match input.reason {
            0 => reason::CONSUMER,
            VENDOR_OPTION => VENDOR_OPTION.into(),
            other if u16::from(other) == reason::CONSUMER => reason::CONSUMER,
            _ => return Err(IdError::Value("the reason is not for programs to give").into()),
        };
        let now = self.cm.now_ns();
        let private = &input.private[..input.private_len.into()];
        self.with(|state| state.ids.reject(now, self.file.channel, input.id, why, private))
    }

    fn disconnect(&self) -> Result<(), Refusal> {
        let input: Disconnect = self.input()?;
        let now = self.cm.now_ns();
        self.with(|state| state.ids.disconnect(now, self.file.channel, input.id))
    }

    fn init_qp_attr(&self) -> Result<(), Refusal> {
        let input: InitQpAttr = self.input()?;
        let given = self.state().ids.qp(self.file.channel, input.id, input.state)?;
        let answer = answers::qp_attributes(input.state, &given);
        self.answer_room(input.response, size_of_val(&answer))?;
        self.answer(input.response, bytes_of(&answer))
    }

    fn get_event(&self, fd: RawFd) -> Result<Outcome, Refusal> {
        const LEAST: usize = size_of::<super::abi::EventAnswer>() - NEWER_EVENT_BYTES;
        let input: GetEvent = self.input()?;
        if self.room < LEAST {
            return Err(Refusal::NoAnswerRoom { have: self.room, need: LEAST });
        }
        let mut state = self.state();
        if !state.ids.has_events(self.file.channel) {
            // SAFETY: asks for flags.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
            let waits = flags >= 0 && flags & libc::O_NONBLOCK == 0;
            return if waits { Ok(Outcome::Wait) } else { Err(Refusal::NoEvent) };
        }
        self.answer_room(input.response, LEAST)?;
        let event = state.ids.next_event(self.file.channel).ok_or(Refusal::NoEvent)?;
        let facts = state.ids.facts_of_any(event.id);
        self.cm.finish(state);
        self.answer(input.response, bytes_of(&answers::event(&event, facts.as_ref())))?;
        Ok(Outcome::Done)
    }

    fn set_option(&self) -> Result<(), Refusal> {
        let input: SetOption = self.input()?;
        let bytes = match (input.level, input.name) {
            (option::LEVEL_ID, option::TOS | option::ACK_TIMEOUT) => 1,
            (option::LEVEL_ID, option::REUSEADDR | option::AFONLY) => 4,
            (option::LEVEL_IB, _) => {
                return Err(Refusal::Unsupported("a path of the program's own"));
            }
            _ => return Err(Refusal::NoSystemCall("an option of that kind")),
        };
        if input.bytes as usize != bytes {
            return Err(IdError::Value("the option has another length").into());
        }
        let mut value = [0; 4];
        read_user(input.value, &mut value[..bytes])?;
        let yes = value != [0; 4];
        let option = match input.name {
            option::TOS => Opt::TypeOfService(value[0]),
            option::ACK_TIMEOUT => Opt::AckTimeout(value[0]),
            option::REUSEADDR => Opt::ReuseAddress(yes),
            _ => Opt::V6Only(yes),
        };
        self.with(|state| state.ids.set(self.file.channel, input.id, option))
    }

    fn notify(&self) -> Result<(), Refusal> {
        let input: Notify = self.input()?;
        if input.event != event::COMM_EST {
            return Err(
                IdError::Value("programs tell of packets that came, and of nothing else").into()
            );
        }
        let now = self.cm.now_ns();
        self.with(|state| state.ids.is_in_use(now, self.file.channel, input.id))
    }

    fn migrate_id(&self) -> Result<(), Refusal> {
        let input: MigrateId = self.input()?;
        self.answer_room(input.response, size_of::<Number>())?;
        let fd = input.fd.cast_signed();
        let Some(Kind::RdmaCm(from)) = self.process.find(fd) else {
            // SAFETY: asks for flags.
            return Err(match unsafe { libc::fcntl(fd, libc::F_GETFD) } {
                -1 => Refusal::Handle { what: "descriptor", handle: input.fd },
                _ => IdError::Value("the descriptor is no event channel").into(),
            });
        };
        let value =
            self.with(|state| state.ids.migrate(from.channel, input.id, self.file.channel))?;
        self.answer(input.response, bytes_of(&Number { value }))
    }
}

/// Linux tells an address of this machine, on an interface of no device, from one that nobody has.
/// UCX tries another port for ever where it is told the latter.
fn not_bound(error: IdError) -> Refusal {
    match error {
        IdError::NotLocal(at) if interface_name(at).is_some() => Refusal::NoDeviceAt(at),
        other => other.into(),
    }
}

fn parameters(given: &ConnParam) -> Parameters {
    Parameters {
        qpn: given.qp_num,
        private: given.private[..given.private_len.into()].to_vec(),
        responder_resources: given.responder_resources,
        initiator_depth: given.initiator_depth,
        flow_control: given.flow_control != 0,
        retry: given.retry_count,
        rnr_retry: given.rnr_retry_count,
        srq: given.srq != 0,
    }
}

/// An address with its length.
fn sized_address(bytes: &[u8; 128], size: u16, reserved: u32) -> Result<Address, Refusal> {
    let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
    let fits = match i32::from(family) {
        libc::AF_INET => size == 16,
        libc::AF_INET6 => size == 28,
        _ => family == AF_IB && usize::from(size) == SOCKADDR_IB_BYTES,
    };
    if !fits || reserved != 0 {
        return Err(IdError::Value("an address does not have its family's length").into());
    }
    if family != AF_IB {
        return ip_address(bytes[..28].try_into().expect("28 bytes"));
    }
    match bytes[8..24] == [0; 16] {
        true => Ok(Address::IbAny),
        false => Err(Refusal::Unsupported("an address of InfiniBand's on Ethernet")),
    }
}

/// An address of IPv4 or IPv6.
fn ip_address(bytes: &[u8; 28]) -> Result<Address, Refusal> {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
        libc::AF_INET6 => {
            let wide: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
            Ipv6Addr::from(wide).into()
        }
        _ => return Err(IdError::Value("an address is neither IPv4's nor IPv6's").into()),
    };
    Ok(Address::Ip(SocketAddr::new(ip, port)))
}
