/* The part of libmlx5's direct verbs that crates/mlx5 uses; the allow-list is in src/main.rs. */
#include <infiniband/mlx5dv.h>
