//! The sizes of pcie-bench's sweep that `hosts.rs` does not have: random places of a warm window of
//! 8 KiB of the own socket, on the two hosts. All sizes of the files are here but those of
//! [`HOST_ROWS`](super::HOST_ROWS), on which the numbers of the device were calibrated in part.
//! These values were seen before it was decided to take them all; no rule of the model was written
//! with them.

/// Bytes; reads on Ivy Bridge and Broadwell, writes on both, Gb/s.
pub type NfpSize = (u32, Option<[f64; 2]>, Option<[f64; 2]>);

/// `BW_DMA_RD` and `BW_DMA_WR` of pcie-bench/data, `bw_dma_sz_sweep.csv`. `None`: the row is in
/// `HOST_ROWS`.
pub const NFP_SIZES: [NfpSize; 37] = [
    (16, Some([8.423, 8.582]), Some([6.091, 6.091])),
    (32, Some([16.603, 16.913]), Some([12.169, 12.169])),
    (63, Some([21.246, 21.295]), Some([23.889, 23.889])),
    (65, Some([21.829, 21.888]), Some([24.606, 24.606])),
    (127, Some([36.633, 42.530]), Some([42.074, 42.024])),
    (128, None, Some([42.405, 42.355])),
    (129, Some([32.340, 37.866]), Some([27.158, 27.158])),
    (192, Some([42.530, 44.366]), Some([40.421, 40.421])),
    (255, Some([43.492, 46.387]), Some([50.350, 50.291])),
    (257, Some([38.937, 49.965]), Some([37.382, 37.382])),
    (320, Some([43.513, 51.821]), Some([46.545, 46.545])),
    (384, Some([46.080, 53.236]), Some([49.914, 48.969])),
    (511, Some([52.682, 54.928]), Some([54.340, 52.909])),
    (513, Some([42.547, 52.788]), Some([46.112, 46.112])),
    (576, Some([45.562, 53.499]), Some([50.492, 49.359])),
    (640, Some([46.966, 54.213]), Some([51.528, 50.421])),
    (704, Some([46.275, 54.998]), Some([51.314, 50.055])),
    (767, Some([46.877, 55.179]), Some([53.024, 52.074])),
    (768, Some([48.432, 55.251]), Some([53.093, 52.142])),
    (769, Some([45.539, 53.454]), Some([50.016, 49.429])),
    (832, Some([47.667, 53.968]), Some([51.921, 50.617])),
    (896, Some([48.828, 54.705]), Some([52.329, 51.130])),
    (960, Some([48.546, 55.264]), Some([52.035, 50.685])),
    (1023, Some([48.617, 55.359]), Some([54.393, 52.961])),
    (1024, Some([49.751, 55.413]), Some([54.446, 53.013])),
    (1025, Some([47.340, 53.954]), Some([51.352, 50.144])),
    (1279, Some([48.938, 55.379]), Some([53.575, 52.409])),
    (1280, Some([49.953, 55.425]), Some([53.616, 52.450])),
    (1281, Some([49.752, 54.351]), Some([52.136, 50.830])),
    (1535, Some([54.432, 55.537]), Some([54.410, 52.978])),
    (1536, Some([55.364, 55.581]), Some([54.446, 53.013])),
    (1537, Some([48.567, 54.599]), Some([52.421, 51.151])),
    (1791, Some([50.444, 55.551]), Some([53.843, 52.599])),
    (1792, Some([51.258, 55.591]), Some([53.873, 52.627])),
    (1793, Some([49.798, 54.758]), Some([52.457, 51.262])),
    (2047, Some([54.755, 55.533]), Some([54.419, 52.987])),
    (2048, Some([55.375, 55.579]), Some([54.446, 53.013])),
];
