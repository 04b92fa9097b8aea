// What every module counts with; each use of a long name would cost bytes.

export const { max, min, floor, round } = Math;

/** Milliseconds on a clock that is never set. */
export function ticks(): number {
  return performance.now();
}
