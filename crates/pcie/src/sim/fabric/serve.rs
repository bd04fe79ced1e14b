//! How a channel serves what waits for it: in which order, by which credits, for how long.
//!
//! A channel serialises its TLPs and sends one only when the far end has header and data credits for
//! it (PCIe base specification 2.6.1). A credit returns when the TLP leaves the far end's buffer. A
//! channel serves its inputs in turn. Within one input, posted requests pass all others; reads and
//! completions never pass a posted request, except completions with the relaxed-ordering attribute
//! (2.4.1).

use super::super::calendar::{Calendar, Event};
use super::super::channel::{Class, Ps};
use super::{Channel, Fabric, NONE, Tlp};

impl Channel {
    /// Takes the credits that have come back.
    fn take_returns(&mut self, now: Ps) {
        while let Some(&(at, class, units)) = self.returns.front()
            && at <= now
        {
            self.headers_left[class as usize] += 1;
            self.data_left[class as usize] += units;
            self.returns.pop_front();
        }
    }

    /// Whether the far end has room for a TLP from an input.
    fn has_room(&self, input: usize, tlp: &Tlp) -> bool {
        let class = tlp.class as usize;
        self.headers_left[class] > 0
            && self.data_left[class] >= tlp.bytes.div_ceil(16)
            && u32::from(tlp.lines) <= self.pools[input].left
    }
}

impl Fabric {
    /// Whether every finite credit has returned or is on its way back.
    pub fn credits_conserved(&self) -> bool {
        self.channels.iter().filter(|c| c.finite).all(|c| {
            (0..3).all(|k| {
                let back = c.returns.iter().filter(|r| r.1 as usize == k);
                let (h, d) = back.fold((0u64, 0u64), |(h, d), r| (h + 1, d + u64::from(r.2)));
                let full = &c.spec.credits;
                u64::from(c.headers_left[k]) + h == u64::from(full.headers[k])
                    && u64::from(c.data_left[k]) + d == u64::from(full.data[k])
            })
        })
    }

    /// The DLLP that answers a TLP follows the TLP on the wire and precedes those that wait.
    pub(super) fn send_dllp(&mut self, now: Ps, channel: u32) {
        let Channel { spec, reverse, .. } = &self.channels[channel as usize];
        let (bytes, reverse) = (u64::from(spec.dllp_bytes), *reverse);
        if bytes == 0 || reverse == NONE {
            return;
        }
        let c = &mut self.channels[reverse as usize];
        let tx = (bytes * c.ps_per_mib) >> 20;
        c.busy_until = c.busy_until.max(now) + tx;
        c.carried.wire_bytes += bytes;
        c.carried.busy_ps += tx;
    }

    /// Handles [`Event::Wake`].
    pub fn wake(&mut self, cal: &mut Calendar, channel: u32) {
        let c = &mut self.channels[channel as usize];
        if c.wake_at == cal.now {
            c.wake_at = 0;
        }
        self.dispatch(cal, channel);
    }

    fn schedule_wake(&mut self, cal: &mut Calendar, channel: u32, at: Ps) {
        let c = &mut self.channels[channel as usize];
        if c.wake_at == 0 || c.wake_at > at {
            c.wake_at = at;
            cal.at(at, Event::Wake(channel));
        }
    }

    pub(super) fn give_back(&mut self, cal: &mut Calendar, channel: u32, class: Class, units: u32) {
        let c = &mut self.channels[channel as usize];
        if !c.finite {
            return;
        }
        let at = cal.now + c.spec.latency_ps;
        c.returns.push_back((at, class, units));
        if c.blocked {
            self.schedule_wake(cal, channel, at.max(cal.now + 1));
        }
    }

    /// Has a TLP go at once where nothing else waits for the channel and it has room, or wait.
    pub(super) fn offer(&mut self, cal: &mut Calendar, channel: u32, input: u32, id: u32) {
        let c = &mut self.channels[channel as usize];
        let tlp = &mut self.tlps[id as usize];
        let mut goes = c.queued == 0 && c.busy_until <= cal.now;
        if goes {
            c.take_returns(cal.now);
            goes = c.has_room(input as usize, tlp);
        }
        if !goes {
            self.enqueue(channel, input, id);
            self.dispatch(cal, channel);
            return;
        }
        tlp.seq = c.seq;
        c.seq = c.seq.wrapping_add(1);
        let tlp = *tlp;
        self.send(cal, (channel, input as usize), id, tlp);
    }

    pub(super) fn dispatch(&mut self, cal: &mut Calendar, channel: u32) {
        let now = cal.now;
        let c = &mut self.channels[channel as usize];
        if c.queued == 0 {
            return;
        }
        if c.busy_until > now {
            let at = c.busy_until;
            self.schedule_wake(cal, channel, at);
            return;
        }
        c.take_returns(now);
        let Some((input, class)) = self.pick(channel) else {
            let c = &mut self.channels[channel as usize];
            c.blocked = true;
            if let Some(&(at, ..)) = c.returns.front() {
                self.schedule_wake(cal, channel, at);
            }
            return;
        };
        let c = &mut self.channels[channel as usize];
        let queue = &mut c.inputs[input][class as usize];
        let id = queue.head;
        let tlp = self.tlps[id as usize];
        queue.head = tlp.next;
        if tlp.next == NONE {
            queue.tail = NONE;
        }
        c.queued -= 1;
        self.send(cal, (channel, input), id, tlp);
    }

    /// Puts a TLP on the channel, which has room for it.
    fn send(&mut self, cal: &mut Calendar, (channel, input): (u32, usize), id: u32, tlp: Tlp) {
        let (now, class) = (cal.now, tlp.class);
        let c = &mut self.channels[channel as usize];
        c.blocked = false;
        c.turn = input as u32 + 1;
        if c.finite {
            c.headers_left[class as usize] -= 1;
            c.data_left[class as usize] -= tlp.bytes.div_ceil(16);
        }
        if tlp.lines > 0 {
            c.pools[input].left -= u32::from(tlp.lines);
        }
        let data = tlp.bytes.next_multiple_of(c.spec.unit_bytes);
        let wire = u64::from(data + c.spec.overhead_bytes[class as usize]);
        let route = &self.routes[tlp.route as usize];
        let caps = if route.is_far { &c.spec.far_gb_per_s } else { &c.spec.peer_gb_per_s };
        let cap = caps[class as usize];
        let capped = cap > 0.0 && route.peer_to_peer;
        let mut tx = ((wire * c.ps_per_mib) >> 20).max(c.spec.tlp_ps[class as usize]);
        if capped {
            // A limit above the link's own rate has no effect.
            tx = tx.max((f64::from(tlp.bytes) * 1000.0 / cap).ceil() as u64);
        }
        c.busy_until = now + tx;
        c.carried.tlps += 1;
        c.carried.data_bytes += u64::from(tlp.bytes);
        c.carried.wire_bytes += wire;
        c.carried.busy_ps += tx;
        self.hops_done += 1;
        cal.arrive_at(now + tx + c.spec.latency_ps + c.spec.inside_ps, channel, id);
        if c.queued > 0 || tlp.hop == 0 {
            // The source refills its queue before the channel is free again.
            let at = c.busy_until;
            self.schedule_wake(cal, channel, at.max(now + 1));
        }
        if tlp.hop == 0 {
            self.drained.push(channel);
        }
        if tlp.holds != NONE {
            self.give_back(cal, tlp.holds, class, tlp.holds_units);
            self.tlps[id as usize].holds = NONE;
        }
    }

    fn pick(&self, channel: u32) -> Option<(usize, Class)> {
        let c = &self.channels[channel as usize];
        // From the input whose turn it is, once around.
        let turn = if (c.turn as usize) < c.inputs.len() { c.turn as usize } else { 0 };
        for i in (turn..c.inputs.len()).chain(0..turn) {
            let queues = &c.inputs[i];
            let head = |class: Class| {
                let id = queues[class as usize].head;
                (id != NONE).then(|| &self.tlps[id as usize])
            };
            let posted = head(Class::Posted);
            let mut best: Option<(u32, Class)> = None;
            for class in [Class::Posted, Class::NonPosted, Class::Completion] {
                let Some(tlp) = head(class) else { continue };
                let room = c.has_room(i, tlp);
                // Sequence numbers wrap: compare by distance.
                let behind_posted =
                    posted.is_some_and(|p| (tlp.seq.wrapping_sub(p.seq) as i32) > 0);
                let ordered = class == Class::Posted
                    || !behind_posted
                    || (class == Class::Completion && tlp.relaxed);
                let older = best.is_none_or(|(seq, _)| (tlp.seq.wrapping_sub(seq) as i32) < 0);
                if room && ordered && older {
                    best = Some((tlp.seq, class));
                }
            }
            if let Some((_, class)) = best {
                return Some((i, class));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::channel::{ChannelSpec, Credits};
    use super::*;

    fn two() -> Fabric {
        let credits = Credits::buffers(4, 256);
        let spec = ChannelSpec { credits, ..ChannelSpec::internal(10.0, 0) };
        let mut fabric = Fabric::new();
        assert_eq!([fabric.add_channel(spec), fabric.add_channel(spec)], [0, 1]);
        fabric
    }

    #[test]
    fn credits_are_here_or_on_their_way_or_lost() {
        let mut f = two();
        assert!(f.credits_conserved());
        f.channels[0].headers_left[0] -= 1;
        assert!(!f.credits_conserved(), "a header");
        f.channels[0].returns.push_back((5, Class::Posted, 3));
        assert!(!f.credits_conserved(), "more data than were taken");
        f.channels[0].data_left[0] -= 3;
        assert!(f.credits_conserved(), "on their way");
        f.channels[1].data_left[2] -= 1;
        assert!(!f.credits_conserved(), "data of the other channel");
    }

    #[test]
    fn a_links_directions_know_each_other() {
        let mut f = two();
        assert_eq!([f.reverse_of(0), f.reverse_of(1)], [None, None]);
        f.pair(0, 1);
        assert_eq!([f.reverse_of(0), f.reverse_of(1)], [Some(1), Some(0)]);
    }
}
