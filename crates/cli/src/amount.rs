//! Numbers of bytes as the model's commands take them.

/// Parses a number of bytes with an optional KiB, MiB, GiB or TiB.
///
/// # Errors
/// One line that quotes the text.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = |why: &str| Err(format!("{text:?}: {why}"));
    let (digits, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ if digits.is_empty() => return wrong("not a size"),
        other => return wrong(&format!("unknown unit {other:?}")),
    };
    let Ok(n) = digits.parse::<u64>() else { return wrong("not a size") };
    n.checked_mul(1 << shift).map_or_else(|| wrong("more than 64 bits hold"), Ok)
}
