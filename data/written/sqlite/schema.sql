create table customers (id integer primary key, name text not null, company text, town text not null, phone text not null, joined text not null);
create table items (id integer primary key, name text not null, kind text not null, daily_rate real not null, deposit integer not null, shelf text not null);
create table rentals (id integer primary key, customer_id integer not null references customers, item_id integer not null references items, out_on text not null, due_on text not null, back_on text);
create table payments (id integer primary key, rental_id integer not null references rentals, paid_on text not null, amount real not null, method text not null);
