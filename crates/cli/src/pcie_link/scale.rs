//! Amounts of data that the rows move.

use bellpush::pcie::sim::Pattern;

/// Amount of data per row. Kernels on CPU threads only show that the rows work.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Bytes of each memory.
    pub span_bytes: u64,
    /// Target duration of a stream, which determines its length from the model's rate.
    pub stream_ns: f64,
    /// Repetitions inside a kernel: fences, loads in a chain, round trips, bursts.
    pub laps: u32,
    /// Measurements per row; their median is the result.
    pub repeats: usize,
}

impl Scale {
    /// Accesses per lap and number of laps of a stream for which the model predicts `gb_per_s`:
    /// whole rounds of the grid, as far as they fit into the memory.
    pub fn length(&self, p: Pattern, gb_per_s: f64) -> (u64, u32) {
        let room = self.span_bytes - u64::from(p.offset_bytes) - u64::from(p.access_bytes);
        let room = room / u64::from(p.stride_bytes) + 1;
        let grid = u64::from(p.blocks) * u64::from(p.threads);
        let wanted = (gb_per_s * self.stream_ns) as u64 / u64::from(p.access_bytes);
        let accesses = wanted.max(16 * grid).min(room);
        let accesses = if accesses > grid { accesses / grid * grid } else { accesses };
        (accesses, (wanted / accesses).clamp(1, 64) as u32)
    }

    /// On a GPU.
    pub const GPU: Self = Self { span_bytes: 256 << 20, stream_ns: 3e6, laps: 1000, repeats: 5 };
    /// On CPU threads.
    pub const HOST: Self = Self { span_bytes: 1 << 20, stream_ns: 0.0, laps: 4, repeats: 1 };
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    #[test]
    fn every_row_stays_inside_its_memory() {
        for (scale, patterns) in [
            (Scale::GPU, rows::gpu_patterns(132)),
            (Scale::GPU, rows::gpu_patterns(1)),
            (Scale::GPU, rows::gpu_patterns(1024)),
            (Scale::HOST, rows::host_patterns()),
        ] {
            for p in patterns {
                for gb_per_s in [0.0, 0.01, 20.0, 400.0, 1e6] {
                    let (accesses, laps) = scale.length(p, gb_per_s);
                    let end = u64::from(p.offset_bytes)
                        + (accesses - 1) * u64::from(p.stride_bytes)
                        + u64::from(p.access_bytes);
                    assert!(
                        accesses > 0 && laps > 0 && end <= scale.span_bytes,
                        "{p:?} {accesses}"
                    );
                }
            }
        }
    }
}
