//! Parallel work in processes that were forked.

use std::process;
use std::sync::OnceLock;

/// Runs work that computes in parallel, on the thread that was started for it. Each such thread of a library
/// calls this function first.
///
/// Parallel work on a thread of no pool is handed to the pool of the process. A forked process has its
/// parent's pool but none of its threads, so such work would wait for ever. There, the work gets a pool of
/// its own for as long as it lasts. One pool for several works would not do, since they may wait for each
/// other.
///
/// ```
/// assert_eq!(rehang_core::in_parallel(|| 1 + 1), 2);
/// ```
pub fn in_parallel<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    /// Id of the process that has the pool: the first one that came here.
    static OF_POOL: OnceLock<u32> = OnceLock::new();
    let of_pool = *OF_POOL.get_or_init(process::id);
    in_parallel_of(of_pool == process::id(), work)
}

fn in_parallel_of<R: Send>(has_pool: bool, work: impl FnOnce() -> R + Send) -> R {
    if has_pool || rayon::current_thread_index().is_some() {
        return work();
    }
    match rayon::ThreadPoolBuilder::new().build() {
        Ok(pool) => pool.install(work),
        // The system gives no more threads. The work cannot wait for ever then, since the caller's next
        // thread fails too.
        Err(_) => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_forked_computes_on_a_pool_of_its_own() {
        let is_pooled = || rayon::current_thread_index().is_some();
        assert!(!in_parallel_of(true, is_pooled));
        assert!(in_parallel_of(false, is_pooled));
        // Work that is on a pool already stays there.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.install(|| in_parallel_of(false, rayon::current_num_threads)), 3);
    }
}
