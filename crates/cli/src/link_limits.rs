//! What rows of `bellpush link --together` say of ports, of links that GPUs share, and of the host:
//! each is what it carries where it is the narrowest, and else at least what has crossed it.
//!
//! - A **port** carries what its GPU moves alone.
//! - GPUs **share a link** (a switch's uplink) where two at once have less than three quarters of
//!   what each has alone; it carries what they have together.
//! - The **host**, its root complexes and memory, is the narrowest where all GPUs at once have less
//!   than nine tenths of what their ports and shared links carry; two that share nothing lose up to
//!   3 %. Which of its parts it is these rows do not say.

use bellpush::pcie::sim::Access;
use serde::Deserialize;
use serde_json::Value;

/// A pair's sum beside that of its flows alone, below which they share a link.
pub const SHARED: f64 = 0.75;
/// Spread of a flow, percent, from which on its pair says nothing.
pub const LOOSE: f64 = 20.0;
/// Share of what their ports and shared links carry below which all GPUs are held up by the host.
const HELD_UP: f64 = 0.9;
/// Most rows of a file: more than those of as many GPUs as a run may have.
const MOST_ROWS: usize = 4096;

/// A row, as saved.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Row {
    /// Name of its set, or `alone`.
    together: String,
    /// Flows of its set.
    flows: usize,
    /// What it is called.
    row: String,
    /// The GPU that moves.
    pub gpu: String,
    /// The GPU at the other end; none: host memory.
    pub peer: Option<String>,
    /// Whether it stores or loads.
    pub access: Access,
    /// GB/s.
    measured: f64,
    spread_percent: f64,
    /// Whether it moved what it should.
    pub verified: bool,
}

/// Rows of a file, set by set.
///
/// # Errors
/// What is no row of `bellpush link --together`, by its number.
pub fn sets(rows: &[Value]) -> Result<Vec<Vec<Row>>, String> {
    if rows.is_empty() {
        return Err("no results".into());
    }
    if rows.len() > MOST_ROWS {
        return Err(format!("{} rows: at most {MOST_ROWS}", rows.len()));
    }
    let mut all: Vec<Vec<Row>> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let row = Row::deserialize(row).map_err(|e| format!("row {}: {e}", i + 1))?;
        // They are printed.
        let is_name = |name: &str| name.len() <= 100 && !name.chars().any(char::is_control);
        if !(is_name(&row.row) && is_name(&row.gpu)) {
            return Err(format!("row {}: a name that is none", i + 1));
        }
        let is_number = |n: f64| n.is_finite() && n >= 0.0;
        if !(is_number(row.measured) && row.measured > 0.0 && is_number(row.spread_percent)) {
            return Err(format!("row {}: measured {}", i + 1, row.measured));
        }
        match all.last_mut().filter(|set| set.len() < set[0].flows) {
            Some(set) if (&set[0].together, set[0].flows) == (&row.together, row.flows) => {
                set.push(row);
            }
            Some(set) => {
                let (flows, own) = (set[0].flows, set.len());
                return Err(format!("row {}: one of {flows} flows, and there are {own}", i + 1));
            }
            None if row.flows == 0 => return Err(format!("row {}: of no flows", i + 1)),
            None => all.push(vec![row]),
        }
    }
    match all.last().filter(|set| set.len() < set[0].flows) {
        Some(set) => Err(format!("{} flows at the end, and there are {}", set[0].flows, set.len())),
        None => Ok(all),
    }
}

/// Limits of each way that rows tell.
pub fn all(rows: &[Value]) -> Vec<(Access, Limits)> {
    let Ok(sets) = sets(rows) else { return Vec::new() };
    let of = |access| Some((access, Limits::of(&sets, access)?));
    [Access::Store, Access::Load].into_iter().filter_map(of).collect()
}

/// What something carries, GB/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Carries {
    /// It is the narrowest.
    This(f64),
    /// So much has crossed it.
    AtLeast(f64),
}

/// GPUs that share a link.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedLink {
    /// Their names.
    pub gpus: Vec<String>,
    /// What it carries of them, GB/s.
    pub gb_per_s: f64,
}

/// Limits one way.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// GPUs with what their ports carry, GB/s.
    pub ports: Vec<(String, f64)>,
    /// Links that several share.
    pub shared: Vec<SharedLink>,
    /// Pairs of GPUs of which the rows are too loose to say.
    pub loose: usize,
    /// The host, where all ran at once.
    pub host: Option<Carries>,
}

fn sum(rows: &[Row]) -> f64 {
    rows.iter().map(|r| r.measured).sum()
}

impl Limits {
    /// Limits to or from host memory; `None` where no GPU moved anything alone, or a row did not
    /// move what it should.
    pub fn of(sets: &[Vec<Row>], access: Access) -> Option<Self> {
        let is_own = |r: &Row| r.peer.is_none() && r.access == access;
        let own: Vec<&Vec<Row>> = sets.iter().filter(|set| set.iter().all(is_own)).collect();
        if own.iter().flat_map(|set| set.iter()).any(|r| !r.verified) {
            return None;
        }
        let alone = own.iter().filter(|set| set.len() == 1);
        let ports: Vec<(String, f64)> =
            alone.map(|set| (set[0].gpu.clone(), set[0].measured)).collect();
        let port = |gpu: &str| ports.iter().find(|(name, _)| name == gpu).map(|p| p.1);
        let mut shared: Vec<SharedLink> = Vec::new();
        let mut loose = 0;
        for set in own.iter().filter(|set| set.len() == 2) {
            let both = port(&set[0].gpu)? + port(&set[1].gpu)?;
            if sum(set) >= SHARED * both {
                continue;
            }
            if set.iter().any(|r| r.spread_percent > LOOSE) {
                loose += 1;
                continue;
            }
            // Links that have a GPU in common are one.
            let names = [&set[0].gpu, &set[1].gpu];
            let (with, without): (Vec<_>, Vec<_>) = std::mem::take(&mut shared)
                .into_iter()
                .partition(|link| names.iter().any(|name| link.gpus.contains(name)));
            let mut gpus: Vec<String> = with.iter().flat_map(|l| l.gpus.clone()).collect();
            gpus.extend(names.into_iter().cloned());
            gpus.sort();
            gpus.dedup();
            let gb_per_s = with.iter().map(|l| l.gb_per_s).fold(sum(set), f64::max);
            shared = without;
            shared.push(SharedLink { gpus, gb_per_s });
        }
        // With one GPU, or two, nothing tells the host from what is above.
        let all = own.iter().filter(|set| set.len() > 2 && set.len() == ports.len());
        let in_shared = |name: &String| shared.iter().any(|l| l.gpus.contains(name));
        let parts: f64 = ports.iter().filter(|(gpu, _)| !in_shared(gpu)).map(|p| p.1).sum::<f64>()
            + shared.iter().map(|l| l.gb_per_s).sum::<f64>();
        let host = all.map(|set| sum(set)).next().map(|rate| {
            if rate < HELD_UP * parts { Carries::This(rate) } else { Carries::AtLeast(rate) }
        });
        (!ports.is_empty()).then_some(Self { ports, shared, loose, host })
    }

    /// The limits, as lines.
    pub fn text(&self, access: Access) -> Vec<String> {
        let way = if access == Access::Store { "to host memory" } else { "from host memory" };
        let rates: Vec<String> =
            self.ports.iter().map(|(gpu, rate)| format!("{gpu} {rate:.1}")).collect();
        let mut lines = vec![format!("{way}, GB/s: ports: {}", rates.join(", "))];
        for link in &self.shared {
            lines.push(format!("  {} share a link: {:.1}", link.gpus.join(", "), link.gb_per_s));
        }
        if self.loose > 0 {
            lines.push(format!("  {} pairs vary too much to say whether they share", self.loose));
        }
        if self.shared.is_empty() && self.loose == 0 && self.ports.len() > 1 {
            lines.push("  no two share a link that limits them".into());
        }
        lines.extend(self.host.map(|host| match host {
            Carries::This(rate) => {
                format!("  root complexes and memory: {rate:.1}, less than ports and shared links")
            }
            Carries::AtLeast(rate) => format!("  root complexes and memory: at least {rate:.1}"),
        }));
        lines
    }

    /// The same for files.
    pub fn json(&self, access: Access) -> Value {
        let ports = self.ports.iter().map(|(gpu, rate)| (gpu.clone(), Value::from(*rate)));
        let shared = self
            .shared
            .iter()
            .map(|l| serde_json::json!({ "gpus": l.gpus, "gb_per_s": l.gb_per_s }));
        let (host, is_limit) = match self.host {
            None => (None, None),
            Some(Carries::This(rate)) => (Some(rate), Some(true)),
            Some(Carries::AtLeast(rate)) => (Some(rate), Some(false)),
        };
        serde_json::json!({
            "access": access, "ports": ports.collect::<serde_json::Map<_, _>>(),
            "shared_links": shared.collect::<Vec<_>>(), "loose_pairs": self.loose,
            "host_gb_per_s": host, "host_limits": is_limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const H100: &str = include_str!("../../../docs/results/link-h100-together.json");

    /// A set of flows to host memory, each at its rate.
    fn set(rates: &[(u32, f64)], spread: f64) -> Vec<Value> {
        let name = if rates.len() == 1 { "alone".to_owned() } else { format!("{rates:?}") };
        let row = |(gpu, rate): &(u32, f64)| {
            json!({ "together": name, "flows": rates.len(), "gpu": format!("GPU {gpu}"),
                "row": format!("GPU {gpu} stores to host memory"), "peer": null, "access": "store", "measured": rate, "spread_percent": spread,
                "verified": true })
        };
        rates.iter().map(row).collect()
    }

    fn limits(sets: &[Vec<Value>]) -> Limits {
        Limits::of(&super::sets(&sets.concat()).unwrap(), Access::Store).unwrap()
    }

    /// Four GPUs, two of them below one uplink of 50, a host of 120 or of plenty.
    fn tree(all: [f64; 4]) -> Vec<Vec<Value>> {
        let rate = |a: u32, b: u32| if (a, b) == (0, 1) { 25.0 } else { 50.0 };
        let mut sets: Vec<Vec<Value>> = (0..4).map(|g| set(&[(g, 50.0)], 1.0)).collect();
        for a in 0..4 {
            sets.extend((a + 1..4).map(|b| set(&[(a, rate(a, b)), (b, rate(a, b))], 1.0)));
        }
        let all: Vec<(u32, f64)> = (0..).zip(all).collect();
        sets.push(set(&all, 1.0));
        sets
    }

    #[test]
    fn ports_uplinks_and_the_host_are_told_apart() {
        let wide = limits(&tree([25.0, 25.0, 50.0, 50.0]));
        let link = SharedLink { gpus: vec!["GPU 0".into(), "GPU 1".into()], gb_per_s: 50.0 };
        assert_eq!((&wide.shared, wide.ports.len()), (&vec![link], 4));
        assert_eq!(wide.host, Some(Carries::AtLeast(150.0)));
        let narrow = limits(&tree([20.0, 20.0, 40.0, 40.0]));
        assert_eq!(narrow.host, Some(Carries::This(120.0)));
        let said = narrow.text(Access::Store).join("\n");
        assert!(said.contains("GPU 0, GPU 1 share a link: 50.0"), "{said}");
        assert!(said.contains("memory: 120.0, less than"), "{said}");
        // What varies says nothing; two GPUs alone do not tell a host from an uplink.
        let loose = [set(&[(0, 50.0)], 1.0), set(&[(1, 50.0)], 1.0)];
        let loose = limits(&[&loose[..], &[set(&[(0, 20.0), (1, 20.0)], 99.0)]].concat());
        assert!(loose.loose == 1 && loose.shared.is_empty() && loose.host.is_none());
    }

    #[test]
    fn the_h100s_have_ports_of_their_own_and_a_host_that_limits_loads() {
        let json: Value = serde_json::from_str(H100).unwrap();
        let sets = sets(json["results"].as_array().unwrap()).unwrap();
        let stores = Limits::of(&sets, Access::Store).unwrap();
        let loads = Limits::of(&sets, Access::Load).unwrap();
        for limits in [&stores, &loads] {
            assert!(limits.ports.len() == 4 && limits.shared.is_empty() && limits.loose == 0);
        }
        let Some(Carries::AtLeast(rate)) = stores.host else { panic!("{stores:?}") };
        assert!((rate - 209.9).abs() < 0.5, "{rate}");
        let Some(Carries::This(rate)) = loads.host else { panic!("{loads:?}") };
        assert!((rate - 151.4).abs() < 0.1, "{rate}");
    }

    #[test]
    fn what_is_no_row_is_refused_by_its_number() {
        let good = tree([50.0; 4]).concat();
        let refused = |rows: Vec<Value>| super::sets(&rows).unwrap_err();
        let with = |i: usize, key: &str, value: Value| {
            let mut rows = good.clone();
            rows[i][key] = value;
            refused(rows)
        };
        assert!(with(1, "access", json!("push")).starts_with("row 2: "));
        assert!(with(1, "measured", json!(-1.0)).contains("row 2: measured -1"));
        assert!(with(1, "gpu", json!("\u{1b}[2J")).contains("row 2: a name that is none"));
        assert!(with(1, "measured", json!("x")).starts_with("row 2: "));
        assert!(with(0, "flows", json!(0)).contains("of no flows"));
        assert!(with(0, "flows", json!(3)).contains("row 2: one of 3 flows"));
        assert!(refused(good[..good.len() - 1].to_vec()).contains("at the end"));
        assert!(refused(Vec::new()).contains("no results"));
        assert!(refused(vec![good[0].clone(); MOST_ROWS + 1]).contains("at most 4096"));
        // One that did not move what it should: no limits.
        let mut rows = good.clone();
        rows[0]["verified"] = json!(false);
        assert!(Limits::of(&super::sets(&rows).unwrap(), Access::Store).is_none());
    }
}
