//! Output of `lspci` (pciutils): the tree of `-t` with and without names, and the devices of `-v`,
//! `-vv` and `-vvv`, each with and without `-n`, `-nn` and `-D`. A file may hold several of them.
//!
//! Lines before the first device are skipped, as are lines that start with `#`, `pcilib:` and
//! `lspci:`. Lines of a device that say nothing of its place or link are skipped as well.

use std::collections::BTreeMap;

use super::capture::{Address, Capture, CaptureError, Function, MAX_FUNCTIONS, Port, Rate, hex};
use super::identity;

/// Reads one capture.
pub fn from_lspci(text: &str) -> Result<Capture, CaptureError> {
    let mut reader = Reader::default();
    for (i, line) in text.lines().enumerate() {
        reader.line(line, i + 1)?;
    }
    reader.end_device();
    if reader.capture.functions.is_empty() {
        let line = text.lines().count().max(1);
        return Err(CaptureError::new(line, "no device: lspci's output names some"));
    }
    Ok(reader.capture)
}

/// What a branch of the tree leads from.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The host: its children are root buses.
    Host,
    /// A bus, with its domain.
    Bus(u32, u8),
}

#[derive(Default)]
struct Reader {
    capture: Capture,
    /// Columns of the open branches of the tree, with their places.
    branches: Vec<(usize, Place)>,
    device: Option<Device>,
    /// The bridge that leads to each bus.
    leads: BTreeMap<(u32, u8), Address>,
}

/// A device of `lspci -v` while its lines are read.
struct Device {
    function: Function,
    /// The buses that its last line says it leads to.
    leads: Option<(u8, u8)>,
    in_acs: bool,
    sees_extended: bool,
    virtual_functions: u32,
    first_virtual: u32,
    stride: u32,
}

impl Reader {
    fn line(&mut self, line: &str, at: usize) -> Result<(), CaptureError> {
        let trimmed = line.trim();
        let noise = ["#", "pcilib:", "lspci:", "```"];
        if trimmed.is_empty() || noise.iter().any(|start| trimmed.starts_with(start)) {
            self.branches.clear();
            return Ok(());
        }
        if trimmed.starts_with("-[") || trimmed.starts_with("-+-[") {
            self.end_device();
            self.branches = vec![];
            let from = line.len() - line.trim_start().len();
            return self.tree(line, from, Place::Host, at);
        }
        if !self.branches.is_empty() {
            return self.branch(line, at);
        }
        if let Some(function) = headline(trimmed, at)? {
            self.end_device();
            self.device = Some(Device {
                function,
                leads: None,
                in_acs: false,
                sees_extended: false,
                virtual_functions: 0,
                first_virtual: 0,
                stride: 0,
            });
            return Ok(());
        }
        match &mut self.device {
            Some(device) if line.starts_with([' ', '\t']) => {
                device.attribute(trimmed, at)?;
                let (bridge, buses) = (device.function.address, device.leads.take());
                buses.map_or(Ok(()), |buses| self.lead(bridge, buses, at))
            }
            Some(_) => Err(CaptureError::new(at, "neither a device nor a line of one")),
            // What stands before: a prompt, a title.
            None => Ok(()),
        }
    }

    /// Notes that a bridge leads to these buses: above its own, where no other leads.
    fn lead(&mut self, bridge: Address, buses: (u8, u8), at: usize) -> Result<(), CaptureError> {
        let (first, last) = buses;
        // Nobody has configured it.
        if buses == (0, 0) {
            return Ok(());
        }
        if first <= bridge.bus || last < first {
            let reason =
                format!("{bridge} leads to buses {first:02x}-{last:02x}, not above its own");
            return Err(CaptureError::new(at, reason));
        }
        match self.leads.insert((bridge.domain, first), bridge) {
            Some(other) if other != bridge => {
                let reason = format!("both {other} and {bridge} lead to bus {first:02x}");
                Err(CaptureError::new(at, reason))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, function: Function, at: usize) -> Result<(), CaptureError> {
        if self.capture.functions.len() >= MAX_FUNCTIONS {
            let reason = format!("more than {MAX_FUNCTIONS} functions");
            return Err(CaptureError::new(at, reason));
        }
        let mut one = Capture::default();
        one.functions.insert(function.address, function);
        self.capture.merge(one);
        Ok(())
    }

    /// A line of the tree that continues a branch above.
    fn branch(&mut self, line: &str, at: usize) -> Result<(), CaptureError> {
        let column = line.find(|c| c != ' ' && c != '|').unwrap_or(line.len());
        let open = self.branches.iter().position(|&(c, _)| c == column);
        let place = match (open, line.as_bytes().get(column)) {
            (Some(open), Some(b'+' | b'\\')) => {
                let place = self.branches[open].1;
                self.branches.truncate(open + 1);
                place
            }
            (_, Some(b'+' | b'\\')) => {
                let reason = format!("no branch of the tree above is in column {}", column + 1);
                return Err(CaptureError::new(at, reason));
            }
            _ => return Err(CaptureError::new(at, "no line of lspci's tree")),
        };
        self.tree(line, column + 1, place, at)
    }

    /// The rest of a tree's line, from byte `from`, whose devices are at `place`.
    fn tree(
        &mut self,
        line: &str,
        from: usize,
        mut place: Place,
        at: usize,
    ) -> Result<(), CaptureError> {
        let mut column = from;
        let mut bridge: Option<Address> = None;
        while let Some(&byte) = line.as_bytes().get(column) {
            match byte {
                b'-' => column += 1,
                b'+' => {
                    self.branches.push((column, place));
                    column += 1;
                }
                b'[' => {
                    let rest = line.get(column + 1..).unwrap_or_default();
                    let Some((buses, _)) = rest.split_once(']') else {
                        return Err(CaptureError::new(at, "a bus without its ]"));
                    };
                    place = self.bus(buses, place, bridge.take(), at)?;
                    column += buses.len() + 2;
                }
                _ => {
                    let rest = line.get(column..).unwrap_or_default();
                    let Place::Bus(domain, bus) = place else {
                        return Err(CaptureError::new(at, "a device that is on no bus"));
                    };
                    let end = rest.find(['-', ' ']).unwrap_or(rest.len());
                    let slot = &rest[..end];
                    let text = format!("{domain:04x}:{bus:02x}:{slot}");
                    let Ok(address) = text.parse::<Address>() else {
                        let reason = format!("{slot:?} is no device and function");
                        return Err(CaptureError::new(at, reason));
                    };
                    let mut function = Function::new(address);
                    if !rest[end..].starts_with('-') {
                        name(&mut function, rest[end..].trim());
                        return self.add(function, at);
                    }
                    self.add(function, at)?;
                    bridge = Some(address);
                    column += end;
                }
            }
        }
        // A bus with nothing on it, such as `-[08]--`, ends its line.
        Ok(())
    }

    /// `0000:00` of the host, `08` and `01-08` of a bridge.
    fn bus(
        &mut self,
        text: &str,
        place: Place,
        bridge: Option<Address>,
        at: usize,
    ) -> Result<Place, CaptureError> {
        let wrong = || CaptureError::new(at, format!("[{text}] is no bus"));
        let (domain, buses) = match text.rsplit_once(':') {
            Some((domain, buses)) => (Some(hex(domain).map_err(|_| wrong())?), buses),
            None => (None, text),
        };
        let (first, last) = buses.split_once('-').unwrap_or((buses, buses));
        let byte = |text: &str| hex(text).ok().and_then(|n| u8::try_from(n).ok());
        let (first, last) = (byte(first).ok_or_else(wrong)?, byte(last).ok_or_else(wrong)?);
        match (place, bridge) {
            (Place::Host, _) => {
                let domain = domain.unwrap_or(0);
                self.capture.roots.insert((domain, first));
                Ok(Place::Bus(domain, first))
            }
            (Place::Bus(..), Some(bridge)) => {
                self.lead(bridge, (first, last), at)?;
                let function = self.capture.functions.get_mut(&bridge);
                function.into_iter().for_each(|f| f.set_buses(first, last));
                Ok(Place::Bus(domain.unwrap_or(bridge.domain), first))
            }
            (Place::Bus(..), None) => Err(CaptureError::new(at, "a bus without its bridge")),
        }
    }

    fn end_device(&mut self) {
        let Some(device) = self.device.take() else { return };
        let (own, mut function) = (device.function.address, device.function);
        if device.sees_extended && function.redirects.is_none() {
            // No such capability: nothing is redirected.
            function.redirects = Some(false);
        }
        let mut one = Capture::default();
        one.functions.insert(own, function);
        self.capture.merge(one);
        for i in 0..device.virtual_functions.min(256) {
            let offset = device.first_virtual + i * device.stride;
            let number = (u32::from(own.bus) << 8 | u32::from(own.device) << 3) + offset;
            let number = number + u32::from(own.function);
            let Ok(bus) = u8::try_from(number >> 8) else { break };
            let (device, function) = ((number >> 3 & 31) as u8, (number & 7) as u8);
            let address = Address { bus, device, function, ..own };
            // It is one of this capture's devices, later or earlier, if it is there at all.
            self.capture.virtuals.insert(address, own);
        }
    }
}

/// `01:00.0 3D controller [0302]: NVIDIA Corporation ... [10de:2330] (rev a1)`; `None`: no device.
fn headline(line: &str, at: usize) -> Result<Option<Function>, CaptureError> {
    let (place, rest) = line.split_once(' ').unwrap_or((line, ""));
    // `-P` and `-PP` write the bridges above, too.
    let Ok(address) = place.rsplit('/').next().unwrap_or(place).parse::<Address>() else {
        return Ok(None);
    };
    let mut function = Function::new(address);
    let Some((class, rest)) = rest.split_once(": ") else {
        return Err(CaptureError::new(at, format!("{place}: no class and name")));
    };
    let code = class.rsplit_once('[').map_or(class, |(_, code)| code).trim_end_matches(']');
    let number = (code.len() == 4).then(|| hex(code).ok()).flatten();
    function.class = number.map(|n| n as u16).or_else(|| class_of(class));
    let end = [" (rev ", " (prog-if "].iter().filter_map(|mark| rest.find(mark)).min();
    name(&mut function, rest[..end.unwrap_or(rest.len())].trim());
    Ok(Some(function))
}

/// Names of the classes that matter here, as pci.ids has them. Of others, 0xffff says that they
/// are known to be something else.
fn class_of(name: &str) -> Option<u16> {
    Some(match name.trim() {
        "VGA compatible controller" => 0x0300,
        "3D controller" => 0x0302,
        "Display controller" => 0x0380,
        "Processing accelerators" => 0x1200,
        "Ethernet controller" => 0x0200,
        "Infiniband controller" | "InfiniBand controller" => 0x0207,
        "Fabric controller" => 0x0208,
        "Host bridge" => identity::HOST_BRIDGE,
        "PCI bridge" => identity::BRIDGE,
        "" => return None,
        _ => 0xffff,
    })
}

/// A name with or without `[vendor:device]` behind it, or these numbers alone.
fn name(function: &mut Function, text: &str) {
    let numbers = |text: &str| {
        let (vendor, device) = text.split_once(':')?;
        let both = vendor.len() == 4 && device.len() == 4;
        both.then_some(())?;
        Some((hex(vendor).ok()? as u16, hex(device).ok()? as u16))
    };
    let (rest, inner) = match text.strip_suffix(']').and_then(|t| t.rsplit_once('[')) {
        Some((rest, inner)) if numbers(inner).is_some() => (rest.trim(), inner),
        _ if numbers(text).is_some() => ("", text),
        _ => (text, ""),
    };
    if let Some((vendor, device)) = numbers(inner) {
        (function.vendor, function.device) = (Some(vendor), Some(device));
    }
    function.name = rest.to_owned();
    function.is_virtual = rest.contains("Virtual Function");
}

/// The number after `key` in a line, such as `NUMA node: 1`.
fn number(line: &str, key: &str, radix: u32, at: usize) -> Result<Option<u32>, CaptureError> {
    let Some((_, rest)) = line.split_once(key) else { return Ok(None) };
    let end = rest.find([',', ' ']).unwrap_or(rest.len());
    let (digits, wrong) =
        (&rest[..end], || CaptureError::new(at, format!("{:?} is no number", rest.trim())));
    if digits.is_empty() || !digits.bytes().all(|b| (b as char).is_digit(radix)) {
        return Err(wrong());
    }
    u32::from_str_radix(digits, radix).map(Some).map_err(|_| wrong())
}

/// `Speed 32GT/s, Width x16`, with remarks such as `(ok)` and `(downgraded)`. A link that is down
/// has none.
fn rate(line: &str) -> Option<Rate> {
    let word = |key: &str| {
        let rest = line.split_once(key)?.1;
        rest.split([',', ' ']).next()
    };
    let speed = word("Speed ")?.strip_suffix("GT/s")?.parse().ok()?;
    Rate::new(speed, word("Width x")?.parse().ok()?)
}

impl Device {
    fn attribute(&mut self, line: &str, at: usize) -> Result<(), CaptureError> {
        let f = &mut self.function;
        if let Some(rest) = line.strip_prefix("Capabilities:") {
            self.in_acs = rest.contains("Access Control Services");
            self.capability(rest);
        } else if line.starts_with("NUMA node:") {
            f.numa = number(line, "NUMA node: ", 10, at)?;
        } else if line.starts_with("IOMMU group:") {
            f.iommu_group = number(line, "IOMMU group: ", 10, at)?;
        } else if line.starts_with("Bus:") {
            let buses =
                (number(line, "secondary=", 16, at)?, number(line, "subordinate=", 16, at)?);
            if let (Some(first), Some(last)) = buses {
                let byte = |n: u32| {
                    let wrong = |_| CaptureError::new(at, format!("{n:x} is no bus"));
                    u8::try_from(n).map_err(wrong)
                };
                let buses = (byte(first)?, byte(last)?);
                f.set_buses(buses.0, buses.1);
                self.leads = Some(buses);
            }
        } else if line.starts_with("LnkCap:") {
            f.max = rate(line);
        } else if line.starts_with("LnkSta:") {
            f.now = rate(line);
        } else if line.contains("RlxdOrd+") || line.contains("RlxdOrd-") {
            f.relaxes = Some(line.contains("RlxdOrd+"));
        } else if line.contains("MaxReadReq ") {
            f.mps = number(line, "MaxPayload ", 10, at)?;
            f.mrrs = number(line, "MaxReadReq ", 10, at)?;
        } else if self.in_acs && line.starts_with("ACSCtl:") {
            f.redirects = Some(line.contains("ReqRedir+"));
        } else if line.contains("Number of VFs: ") {
            self.virtual_functions = number(line, "Number of VFs: ", 10, at)?.unwrap_or(0);
        } else if line.starts_with("VF offset: ") {
            // Both are 16 bits wide.
            let part = |key| Ok(number(line, key, 10, at)?.unwrap_or(0) & 0xffff);
            (self.first_virtual, self.stride) = (part("VF offset: ")?, part("stride: ")?);
        }
        Ok(())
    }

    fn capability(&mut self, text: &str) {
        let f = &mut self.function;
        if text.contains("<access denied>") {
            f.denied = true;
            return;
        }
        let (place, what) = text.split_once(']').unwrap_or((text, ""));
        self.sees_extended |= place.contains(" v");
        let what = what.trim();
        if what.starts_with("Express") {
            let ports = [
                ("Root Complex", Port::Integrated),
                ("Root Port", Port::Root),
                ("Upstream Port", Port::Upstream),
                ("Downstream Port", Port::Downstream),
                ("Endpoint", Port::Endpoint),
                ("Bridge", Port::PciBridge),
            ];
            f.port = ports.iter().find(|(name, _)| what.contains(name)).map(|&(_, port)| port);
        }
    }
}
