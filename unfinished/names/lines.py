#!/usr/bin/env python3
"""'@@ path'; 'N text' replaces line N, keeping its indent ('\\n' breaks lines); 'N-' deletes; 's OLD NEW' renames words afterwards."""
import re,sys,subprocess
BASE=sys.argv[2] if len(sys.argv)>2 else None
path=None; bad=0
def flush():
    global bad
    if not path: return
    if BASE:
        t=open(path).read().split('\n')
        for n in edits:
            old=base[n-1]; new=lines[n-1]
            at=[i for i,x in enumerate(t) if x==old]
            if not at: print('GONE',path,n,old.strip()[:80]); bad+=1; continue
            k=min(at,key=lambda i:abs(i-n))
            t[k]=new if new is not None else '\0'
        t='\n'.join(x for x in t if x!='\0')
    else: t='\n'.join(l for l in lines if l is not None)
    for a,b in renames:
        n=len(re.findall(r'\b'+a+r'\b',t))
        if not n: print('NO WORD',path,a); bad+=1
        t=re.sub(r'\b'+a+r'\b',b,t)
    open(path,'w').write(t)
for l in open(sys.argv[1]).read().split('\n'):
    if l.startswith('@@ '):
        flush(); path=l[3:].strip(); lines=(subprocess.run(['git','show',BASE+':'+path],capture_output=True,text=True).stdout if BASE else open(path).read()).split('\n'); base=list(lines); edits=[]; renames=[]; last=0
    elif l.startswith('s '): renames.append(l.split(' ',2)[1:])
    elif l.strip():
        m=re.match(r'(\d+)(-|\s)(.*)$',l)
        if not m: print('?',l); bad+=1; continue
        n=int(m[1])
        edits.append(n); old=lines[n-1]; ind=re.match(r'\s*',old)[0]
        if m[2]=='-': lines[n-1]=None; continue
        new=m[3]
        def kind(x):
            x=x.strip()
            for k in('///','//!','//','fn '):
                if x.startswith(k): return k
            return 'code'
        if kind(old)!=kind(new): print('KIND',path,n,repr(old[:60]),repr(new[:60])); bad+=1
        lines[n-1]='\n'.join(ind+x for x in new.split('\\n'))
flush(); print('bad',bad)
