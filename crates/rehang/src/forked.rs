//! Work in parallel in processes that were forked.

use std::process;
use std::sync::OnceLock;

/// Does work that computes in parallel, on a thread that was started for it. Each such thread of a library calls this first.
///
/// What computes in parallel on a thread of no pool is handed to the pool of the process. A process that was forked has its parent's pool and
/// none of its threads, so it would wait for ever: there, the work gets a pool of its own, for as long as it lasts. One pool for several
/// works would not do, since they may wait for each other.
///
/// ```
/// assert_eq!(rehang::in_parallel(|| 1 + 1), 2);
/// ```
pub fn in_parallel<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    /// The process that the pool is of: the first that came here.
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
        // The system gives no more threads: nothing here can wait for ever then, for the caller's next thread fails too.
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
        // What is on a pool already stays there.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.install(|| in_parallel_of(false, rayon::current_num_threads)), 3);
    }
}
