//! What a link does to packets, as people write it: `loss=1%,dup=0.1%,delay=10us,seed=7`.

use std::fmt;
use std::str::FromStr;

/// Faults of a link, each independent of the others. Probabilities are per packet.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Probability that a packet is sent twice.
    pub dup: f64,
    /// Probability that a packet is overtaken by some of those that follow.
    pub reorder: f64,
    /// Probability that a bit of a packet flips.
    pub corrupt: f64,
    /// How much longer every packet takes, in nanoseconds.
    pub delay_ns: u64,
    /// Bytes (BTH to ICRC) a second, at most.
    pub rate: Option<u64>,
    /// Seed of all decisions: the same packets suffer the same faults.
    pub seed: u64,
}

/// Why a description of faults makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultsError {
    /// A part without `=`.
    #[error("{0:?} is not of the form NAME=VALUE")]
    Form(String),
    /// A name that is not known.
    #[error("no fault is named {0:?}; there are loss, dup, reorder, corrupt, delay, rate and seed")]
    Name(String),
    /// The same name twice.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A value that the name does not take.
    #[error("{name}={} makes no sense: {want}", one_line(.value))]
    Value {
        /// The name.
        name: &'static str,
        /// What was written.
        value: String,
        /// What would be right.
        want: &'static str,
    },
}

pub(crate) const PERCENT: &str = "a percentage from 0% to 100%";
pub(crate) const TIME: &str = "a time such as 500ns, 10us, 2.5ms or 1s, up to 3600s";
const RATE: &str = "a rate such as 800kB/s, 100MB/s or 1.5GB/s";
const SEED: &str = "a number from 0 to 2^64 - 1";

/// Text of others' in an error's one line: control characters are written out.
pub(crate) fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(plain).collect()
}

const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
const RATES: [(&str, f64); 4] = [("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9), ("B/s", 1.0)];
/// Longest delay: an hour.
const MAX_DELAY_NS: f64 = 3600e9;

/// A number, not negative, before one of these units; the first that fits counts.
fn with_unit(value: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, scale) =
        units.iter().find_map(|(unit, scale)| Some((value.strip_suffix(unit)?, scale)))?;
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    Some(number).filter(|_| plain)?.parse::<f64>().ok().map(|number| number * scale)
}

/// A share, 0 to 1, of a percentage.
pub(crate) fn percent(text: &str) -> Option<f64> {
    with_unit(text, &[("%", 0.01)]).filter(|share| *share <= 1.0)
}

/// A time in nanoseconds.
pub(crate) fn time_ns(text: &str) -> Option<u64> {
    with_unit(text, &TIMES).filter(|ns| *ns <= MAX_DELAY_NS).map(|ns| ns as u64)
}

/// A share as the percentage that is read as the same: with the digits that were written where they are few.
fn percentage(share: f64) -> String {
    let rounded = format!("{:.9}", share * 100.0);
    let short = rounded.trim_end_matches('0').trim_end_matches('.');
    // What is read is a multiple of 0.01, which is rounded once more.
    let near = (-4..=4).map(|step: i64| {
        let bits = (share * 100.0).to_bits().saturating_add_signed(step);
        f64::from_bits(bits).to_string()
    });
    let mut all = [short.to_owned()].into_iter().chain(near);
    let same = |text: &String| percent(&format!("{text}%")) == Some(share);
    all.find(same).unwrap_or_else(|| (share * 100.0).to_string())
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (name, value) =
                part.split_once('=').ok_or_else(|| FaultsError::Form(part.into()))?;
            let (name, value) = (name.trim(), value.trim());
            let names = ["loss", "dup", "reorder", "corrupt", "delay", "rate", "seed"];
            let known = names.into_iter().find(|known| *known == name);
            let name = known.ok_or_else(|| FaultsError::Name(name.into()))?;
            if seen.contains(&name) {
                return Err(FaultsError::Twice(name));
            }
            seen.push(name);
            let bad = |want| FaultsError::Value { name, value: value.into(), want };
            let percent = || percent(value).ok_or_else(|| bad(PERCENT));
            match name {
                "loss" => faults.loss = percent()?,
                "dup" => faults.dup = percent()?,
                "reorder" => faults.reorder = percent()?,
                "corrupt" => faults.corrupt = percent()?,
                "delay" => faults.delay_ns = time_ns(value).ok_or_else(|| bad(TIME))?,
                "rate" => {
                    let rate = with_unit(value, &RATES).filter(|rate| (1.0..=1e15).contains(rate));
                    faults.rate = Some(rate.ok_or_else(|| bad(RATE))? as u64);
                }
                _ => faults.seed = value.parse().map_err(|_| bad(SEED))?,
            }
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = [
            ("loss", self.loss),
            ("dup", self.dup),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        for (name, share) in shares.into_iter().filter(|(_, share)| *share > 0.0) {
            write!(f, "{name}={}%,", percentage(share))?;
        }
        if self.delay_ns > 0 {
            write!(f, "delay={}ns,", self.delay_ns)?;
        }
        if let Some(rate) = self.rate {
            write!(f, "rate={rate}B/s,")?;
        }
        write!(f, "seed={}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_written_again() {
        let text = "loss=1%,dup=0.1%,reorder=1%,delay=10us,corrupt=0.01%,rate=1GB/s,seed=7";
        let faults: Faults = text.parse().unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(faults.loss, 0.01) && close(faults.dup, 0.001));
        assert!(close(faults.reorder, 0.01) && close(faults.corrupt, 0.0001));
        assert_eq!((faults.delay_ns, faults.rate, faults.seed), (10_000, Some(1_000_000_000), 7));
        let again = "loss=1%,dup=0.1%,reorder=1%,corrupt=0.01%,delay=10000ns,rate=1000000000B/s,\
                     seed=7";
        assert_eq!(faults.to_string(), again);
        assert_eq!(again.parse(), Ok(faults));
        let none: Faults = "seed=0".parse().unwrap();
        assert_eq!(none, Faults::default());
        for (text, delay_ns) in [("1s", 1_000_000_000), ("2.5ms", 2_500_000), ("0.5us", 500)] {
            assert_eq!(format!("delay={text}").parse::<Faults>().unwrap().delay_ns, delay_ns);
        }
        let rate = |text: &str| format!("rate={text}").parse::<Faults>().unwrap().rate;
        assert_eq!((rate("1.5MB/s"), rate("7B/s")), (Some(1_500_000), Some(7)));
    }

    #[test]
    fn what_makes_no_sense_says_why() {
        let error = |text: &str| text.parse::<Faults>().unwrap_err().to_string();
        assert_eq!(error(""), r#""" is not of the form NAME=VALUE"#);
        assert_eq!(error("loss"), r#""loss" is not of the form NAME=VALUE"#);
        assert!(error("los=1%").starts_with(r#"no fault is named "los"; there are loss,"#));
        assert_eq!(error("loss=1%,loss=2%"), "loss is given twice");
        assert_eq!(error("loss=101%"), "loss=101% makes no sense: a percentage from 0% to 100%");
        for text in [
            "loss=1",
            "loss=-1%",
            "loss=%",
            "loss=nan%",
            "loss=inf%",
            "dup=1e1%",
            "delay=5",
            "delay=-1us",
            "delay=2h",
            "delay=3601s",
            "rate=0B/s",
            "rate=1GB",
            "rate=1Gb/s",
            "seed=-1",
            "seed=18446744073709551616",
            "seed=1.5",
        ] {
            assert!(error(text).contains("makes no sense"), "{text}: {}", error(text));
        }
    }
}
